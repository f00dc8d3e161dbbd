"""The dataset card of a run: the README.md that the Hub shows and `load_dataset` reads.

Built from the run's settings and summary only.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from ludus.data.hub import (
    COLUMNS,
    DATASETS_VERSION,
    OPENENV_COLUMNS,
    OPENENV_RESULTS_FILE,
    Column,
    code_block,
    front_matter_size_category,
    hub_front_matter,
    inline_code,
    markdown_table,
    to_single_line,
)
from ludus.data.interval_estimates import format_mean
from ludus.data.json_files import read_json_object
from ludus.data.run_folder import RUN_FILE, SUMMARY_FILE
from ludus.data.tool_schema import JsonObject

CARD_FILE = "README.md"
EPISODES_FILE = "episodes.jsonl"
_TAGS = ("ludus", "openenv", "tool-use", "rollouts")


def render_run_card(
    settings: JsonObject,
    summary: JsonObject,
    *,
    repo_id: str = "USER/NAME",
    command: str | None = None,
    records: bool = False,
) -> str:
    """Render the README.md of a run.

    `settings` come from run.json, `summary` is summary.json, `command` is the command line that
    reproduces the data set. `records`: whether there is a `results.jsonl` besides the episodes,
    which is then what `load_dataset` loads by default.
    """
    subject, count = "Episodes", summary.get("episodes")
    if count is not None:
        subject = "One episode" if count == 1 else f"{count:,} episodes"
    parts = [
        f"# {_title(settings)}",
        f"{subject} collected with Ludus: an agent that calls tools, and an environment that "
        "scores it. Each row is one attempt at one task, with its messages and its reward.",
        facts_table(settings, summary),
    ]
    scored = summary.get("scored")
    if count is not None and scored is not None and scored < count:
        parts.append(
            f"{count - scored:,} unscored: `reward` is null, because a fault ended the episode or "
            "the environment gave no reward. Exclude these from training and statistics: they are "
            "not zeros."
        )
    if reasons := summary.get("stop_reasons"):
        ordered = sorted(reasons.items(), key=lambda item: (-item[1], item[0]))
        rows = [(inline_code(reason), f"{number:,}") for reason, number in ordered]
        parts += ["## Stop reasons", markdown_table(("stop_reason", "episodes"), rows)]
    name = json.dumps(repo_id)
    code = f"""\
from datasets import load_dataset

episodes = load_dataset({name}, split="train")
solved = episodes.filter(lambda episode: episode["reward"] == 1.0)
print(f"{{len(solved)}} of {{len(episodes)}} are solved")"""
    parts += ["## Usage", code_block(code, "python")]
    parts.append(f"This needs datasets {DATASETS_VERSION} or newer.")
    if records:
        parts.append(
            "The rows are records of `openenv collect`, without the system prompt. "
            f'`load_dataset({name}, "episodes", split="train")` loads the episodes of Ludus, with '
            "the system prompt and the tools."
        )
    for _, file, columns in _configs(records=records):
        rows = [(inline_code(column.name), column.description) for column in columns]
        parts += [f"## Columns of `{file}`", markdown_table(("column", "content"), rows)]
    if command or settings:
        parts.append("## Reproduce")
    if command:
        parts.append(code_block(command, "bash"))
    if settings:
        text = json.dumps(settings, indent=2, ensure_ascii=False, default=str)
        parts += ["Settings that determine the episodes:", code_block(text, "json")]
    head = front_matter(settings, summary, records=records)
    return head + "\n" + "\n\n".join(filter(None, parts)) + "\n"


def front_matter(settings: JsonObject, summary: JsonObject, *, records: bool = False) -> str:
    """Render the YAML block at the top of the card. Every value is JSON, which is YAML."""
    configs = _configs(records=records)
    values: JsonObject = {
        "pretty_name": _title(settings),
        "tags": _TAGS,
        "task_categories": ["text-generation"],
        "size_categories": front_matter_size_category(summary.get("episodes")),
        "configs": [
            {"config_name": name, "data_files": [{"split": "train", "path": file}]}
            for name, file, _ in configs
        ],
        "dataset_info": [
            {"config_name": name, "features": [column.to_feature() for column in columns]}
            for name, _, columns in configs
        ],
    }
    return hub_front_matter(values, [])


def _configs(*, records: bool) -> list[tuple[str, str, Sequence[Column]]]:
    """The files that `load_dataset` reads, with the names of their configs."""
    if not records:
        return [("default", EPISODES_FILE, COLUMNS)]
    openenv = ("default", OPENENV_RESULTS_FILE, OPENENV_COLUMNS)
    return [openenv, ("episodes", EPISODES_FILE, COLUMNS)]


def card_for_run(folder: Path, repo_id: str, *, command: str | None = None) -> str:
    """Return the card of a run folder. A README.md of the user's own is kept.

    If it has no front matter, ours is added: without it `load_dataset` would also read run.json.
    """
    settings = read_json_object(folder / RUN_FILE).get("settings") or {}
    summary = read_json_object(folder / SUMMARY_FILE)
    readme, records = folder / CARD_FILE, (folder / OPENENV_RESULTS_FILE).is_file()
    if not readme.is_file():
        return render_run_card(settings, summary, repo_id=repo_id, command=command, records=records)
    text = readme.read_text(encoding="utf-8-sig")
    if text.startswith("---"):
        return text
    return f"{front_matter(settings, summary, records=records)}\n{text}"


def _title(settings: JsonObject) -> str:
    title = f"Rollouts of {to_single_line(settings.get('environment') or 'an environment')}"
    agent = settings.get("agent") or {}
    name = agent.get("model") or agent.get("provider")
    return f"{title} by {to_single_line(name)}" if name else title


def facts_table(settings: JsonObject, summary: JsonObject) -> str:
    """Render the table of environment, agent, counts, reward and cost, as far as known."""
    usage, agent = summary.get("usage") or {}, settings.get("agent") or {}
    tokens = [
        f"{usage[key]:,} {direction}"
        for key, direction in (("prompt_tokens", "in"), ("completion_tokens", "out"))
        if usage.get(key) is not None
    ]
    options = [
        f"{key} {inline_code(value)}"
        for key, value in agent.items()
        if key not in ("provider", "model") and value is not None
    ]
    provider = to_single_line(agent.get("provider") or "")
    mean, cost = summary.get("mean_reward"), usage.get("cost")
    counts = [summary.get(key) for key in ("episodes", "scored")]
    episodes, scored = ("" if count is None else f"{count:,}" for count in counts)
    facts = {
        "Environment": inline_code(settings.get("environment")),
        "Agent": ", ".join(filter(None, [inline_code(agent.get("model")), provider, *options])),
        "Episodes": episodes,
        "Scored": scored,
        "Mean reward (95 % interval)": (
            "" if mean is None else format_mean(mean, summary.get("reward_interval"))
        ),
        "Tokens": ", ".join(tokens),
        "Cost": "" if cost is None else f"${cost:,.2f}",
    }
    rows = [(name, fact) for name, fact in facts.items() if fact]
    return markdown_table(("", ""), rows) if rows else ""
