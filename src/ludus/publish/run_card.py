"""The card of a data set: the README.md that the Hub shows and `load_dataset` obeys.

Written from a run's settings and summary, and from nothing else: what is not in them is left out.
Pure functions; `card_of` reads the two files. The Hub is `ludus.publish.hub_upload`'s business.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic_core import from_json

from ludus.data.markdown import (
    build_front_matter,
    code_block,
    inline_code,
    markdown_table,
    size_category,
    to_single_line,
)
from ludus.data.schema import (
    COLUMNS,
    DATASETS_VERSION,
    OPENENV_COLUMNS,
    OPENENV_RESULTS_FILE,
    Column,
)
from ludus.data.tool_schema import JsonObject

CARD_FILE = "README.md"
EPISODES_FILE = "episodes.jsonl"
_TAGS = ("ludus", "openenv", "tool-use", "rollouts")


def render_card(
    settings: Mapping[str, Any],
    summary: Mapping[str, Any],
    *,
    repo_id: str = "USER/NAME",
    command: str | None = None,
    records: bool = False,
) -> str:
    """The whole README.md.

    `settings` are those of run.json (`environment`, `agent`, ...), `summary` is summary.json;
    `command` is the command line that makes the data set again; `records`: whether there is a
    `results.jsonl` beside the episodes, which is what `load_dataset` then gives by default.
    """
    parts = (
        f"# {_title(settings)}",
        _introduction(settings, summary),
        _facts_table(settings, summary),
        _stop_reasons_section(summary),
        _usage_section(repo_id, records=records),
        _columns_section(OPENENV_COLUMNS if records else COLUMNS),
        _columns_section(COLUMNS, f"A row of `{EPISODES_FILE}`") if records else "",
        _reproduction_section(settings, command),
    )
    head = front_matter(settings, summary, records=records)
    return head + "\n" + "\n\n".join(filter(None, parts)) + "\n"


def front_matter(
    settings: Mapping[str, Any], summary: Mapping[str, Any], *, records: bool = False
) -> str:
    """The YAML block that begins a card. Every value is JSON, which is YAML too."""
    files: dict[str, tuple[str, Sequence[Column]]] = {"default": (EPISODES_FILE, COLUMNS)}
    if records:
        files = {
            "default": (OPENENV_RESULTS_FILE, OPENENV_COLUMNS),
            "episodes": (EPISODES_FILE, COLUMNS),
        }
    values: JsonObject = {
        "pretty_name": _title(settings),
        "tags": _TAGS,
        "task_categories": ["text-generation"],
        "size_categories": size_category(summary.get("episodes")),
        "configs": [
            {"config_name": name, "data_files": [{"split": "train", "path": file}]}
            for name, (file, _) in files.items()
        ],
        "dataset_info": [
            {"config_name": name, "features": [column.to_feature() for column in columns]}
            for name, (_, columns) in files.items()
        ],
    }
    return build_front_matter(values, [])


def card_for_run(folder: Path, repo_id: str, *, command: str | None = None) -> str:
    """The card for a run folder. A README.md of the user's own is kept.

    One without front matter gets ours, or `load_dataset` would also read run.json as episodes.
    """
    settings = _read_json(folder / "run.json").get("settings") or {}
    summary = _read_json(folder / "summary.json")
    own, records = folder / CARD_FILE, (folder / OPENENV_RESULTS_FILE).is_file()
    if not own.is_file():
        return render_card(settings, summary, repo_id=repo_id, command=command, records=records)
    text = own.read_text(encoding="utf-8-sig")
    if text.startswith("---"):
        return text
    return f"{front_matter(settings, summary, records=records)}\n{text}"


def _read_json(path: Path) -> JsonObject:
    try:
        found = from_json(path.read_bytes())
    except (FileNotFoundError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _title(settings: Mapping[str, Any]) -> str:
    played = f"Rollouts of {to_single_line(settings.get('environment') or 'an environment')}"
    agent = _agent_info(settings)
    name = agent.get("model") or agent.get("provider")
    return f"{played} by {to_single_line(name)}" if name else played


def _introduction(settings: Mapping[str, Any], summary: Mapping[str, Any]) -> str:
    count = summary.get("episodes")
    many = "Episodes" if count is None else f"{count:,} episodes" if count != 1 else "One episode"
    return (
        f"{many} collected with Ludus: an agent that calls tools, and an environment that scores "
        "it. Each row is one attempt at one task, with its messages and its reward."
    )


def _facts_table(settings: Mapping[str, Any], summary: Mapping[str, Any]) -> str:
    usage = summary.get("usage") or {}
    spent = [
        f"{usage[key]:,} {word}"
        for key, word in (("prompt_tokens", "in"), ("completion_tokens", "out"))
        if usage.get(key) is not None
    ]
    episodes, scored = summary.get("episodes"), summary.get("scored")
    rows = {
        "Environment": inline_code(settings.get("environment")),
        "Agent": _describe_agent(_agent_info(settings)),
        "Episodes": _format_number(episodes),
        "Scored": _format_number(scored),
        "Mean reward": _format_number(summary.get("mean_reward")),
        "Tokens": ", ".join(spent),
        "Cost": f"${usage['cost']:,.2f}" if usage.get("cost") is not None else "",
    }
    known = [(name, fact) for name, fact in rows.items() if fact]
    listed = markdown_table(("", ""), known) if known else ""
    if episodes is None or scored is None or episodes <= scored:
        return listed
    some = "One of them is" if episodes - scored == 1 else f"{episodes - scored:,} of them are"
    return (
        f"{listed}\n\n{some} unscored: `reward` is null, and nothing is known about how well the "
        "model did. Leave these out of training and statistics; they are no zeros."
    )


def _stop_reasons_section(summary: Mapping[str, Any]) -> str:
    reasons: Mapping[str, int] = summary.get("stop_reasons") or {}
    if not reasons:
        return ""
    ordered = sorted(reasons.items(), key=lambda item: (-item[1], item[0]))
    rows = [(inline_code(reason), f"{count:,}") for reason, count in ordered]
    return "## How they ended\n\n" + markdown_table(("stop_reason", "episodes"), rows)


def _usage_section(repo_id: str, *, records: bool) -> str:
    lines = (
        "from datasets import load_dataset",
        "",
        f'episodes = load_dataset({json.dumps(repo_id)}, split="train")',
        'solved = episodes.filter(lambda episode: episode["reward"] == 1.0)',
        'print(f"{len(solved)} of {len(episodes)} are solved")',
    )
    block = code_block("\n".join(lines), "python")
    needs = f"This needs datasets {DATASETS_VERSION} or newer."
    whole = f'`load_dataset({json.dumps(repo_id)}, "episodes", split="train")`'
    more = (
        "The rows are records of `openenv collect`: the system prompt is not among their messages. "
        f"{whole} gives the episodes as Ludus keeps them, with the system prompt and the tools."
    )
    return "\n\n".join(["## Load it", block, needs, *([more] if records else [])])


def _columns_section(columns: Sequence[Column], title: str = "A row") -> str:
    rows = [(inline_code(column.name), column.description) for column in columns]
    return f"## {title}\n\n" + markdown_table(("field", "what"), rows)


def _reproduction_section(settings: Mapping[str, Any], command: str | None) -> str:
    blocks = [code_block(command, "bash")] if command else []
    if settings:
        text = json.dumps(settings, indent=2, ensure_ascii=False, default=str)
        blocks += ["The settings that decide what the episodes are:", code_block(text, "json")]
    return "\n\n".join(["## Make it again", *blocks]) if blocks else ""


def _agent_info(settings: Mapping[str, Any]) -> Mapping[str, Any]:
    agent = settings.get("agent")
    return agent if isinstance(agent, Mapping) else {"provider": agent} if agent else {}


def _describe_agent(agent: Mapping[str, Any]) -> str:
    rest = {key: value for key, value in agent.items() if key not in ("provider", "model")}
    named = [inline_code(agent.get("model")), to_single_line(agent.get("provider") or "")]
    tuned = [f"{key} {inline_code(value)}" for key, value in rest.items() if value is not None]
    return ", ".join(filter(None, [*named, *tuned]))


def _format_number(value: Any) -> str:
    if value is None:
        return ""
    return f"{value:,.3f}" if isinstance(value, float) else f"{value:,}"
