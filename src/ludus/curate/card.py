"""What a curated data set says about itself: README.md for people, curation.json for programs.

Both are written from the same report, so they cannot differ.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from ludus.curate.curation import Curation, Report
from ludus.curate.formats import COLUMNS
from ludus.curate.target import ABOUT, CARD
from ludus.data.columns import DATASETS_VERSION
from ludus.data.markdown import (
    inline_code,
    code_block,
    build_front_matter,
    to_single_line,
    size_category,
    markdown_table,
)
from ludus.data.tools import JsonObject
from ludus.data.versions import versions

_TAGS = ("ludus", "tool-use")
_PURPOSE = {
    "sft": "Rows for supervised fine-tuning",
    "dpo": "Preference pairs",
    "episodes": "Episodes",
    "openenv": "Rollouts in OpenEnv's form",
    "nemo-gym": "Rollouts in NeMo Gym's form",
    "nemo-gym-input": "Tasks in NeMo Gym's form",
}
_TRAINING = {
    "sft": "TRL's `SFTTrainer` takes the rows as they are; `SFTConfig(assistant_only_loss=True)` "
    "trains on what the model said and on nothing else.",
    "dpo": "TRL's `DPOTrainer` takes the rows as they are.",
}


@dataclass(frozen=True, slots=True)
class Origin:
    """What only the maker of the rows knows of them."""

    runs: Sequence[str]
    digest: str
    """Of the rows: others have another."""
    location: str
    """Where they can be loaded from."""
    command: str | None = None
    """What was typed."""


def write_card(folder: Path, report: Report, curation: Curation, origin: Origin) -> None:
    """Write README.md and curation.json into the folder."""
    about = {
        "version": 1,
        "ludus": versions()["ludus"],
        "digest": origin.digest,
        "runs": list(origin.runs),
        "settings": _settings(curation),
        "report": report.as_json(),
    }
    text = json.dumps(about, indent=2, ensure_ascii=False, allow_nan=False, default=str)
    (folder / ABOUT).write_text(f"{text}\n", encoding="utf-8")
    (folder / CARD).write_text(card(report, curation, origin), encoding="utf-8")


def made_alike(folder: Path, curation: Curation, runs: Sequence[str]) -> str | None:
    """The digest of a data set that the same options made, from these runs or some of them."""
    try:
        about = json.loads((folder / ABOUT).read_bytes())
        same = about["settings"] == json.loads(json.dumps(_settings(curation), default=str))
        return str(about["digest"]) if same and set(about["runs"]) <= set(runs) else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def card(report: Report, curation: Curation, origin: Origin) -> str:
    parts = (
        f"# {_title(curation, origin)}",
        _opening(report, curation),
        "## What was left out\n\n" + _steps(report),
        _unreadable(report),
        _split(report),
        _lengths(report),
        _loading(curation, origin),
        _columns(curation),
        _again(curation, origin),
    )
    head = _front_matter(report, curation, origin)
    return head + "\n" + "\n\n".join(filter(None, parts)) + "\n"


def _title(curation: Curation, origin: Origin) -> str:
    runs = [to_single_line(Path(run).resolve().name) for run in origin.runs]
    named = ", ".join(runs[:3])
    more = f" and {len(runs) - 3} more" if len(runs) > 3 else ""
    return f"{_PURPOSE[curation.to]} from {named}{more}"


def _opening(report: Report, curation: Curation) -> str:
    many = {side: f"{rows:,}" for side, rows in report.rows.items()}
    rows = " and ".join(f"{count} to {side} on" for side, count in many.items())
    said = f"{sum(report.rows.values()):,} rows ({rows}), from {report.kept:,} of "
    said += f"{report.episodes:,} episodes that were curated with Ludus."
    if report.rewards:
        low, mean, high = (f"{report.rewards[name]:.3f}" for name in ("min", "mean", "max"))
        said += f" Their rewards lie between {low} and {high}, {mean} on average."
    return said


def _steps(report: Report) -> str:
    rows = [["episodes read", "", f"{report.episodes:,}", ""]]
    for step in report.steps:
        rows.append(
            [
                inline_code(step.reason),
                to_single_line(step.detail),
                f"{step.left:,}",
                f"{step.removed:,}",
            ]
        )
    return markdown_table(("step", "", "left", "left out"), rows)


def _unreadable(report: Report) -> str:
    if not report.unreadable:
        return ""
    listed = "\n".join(f"- {inline_code(place)}" for place in report.unreadable)
    return f"Lines that are no episode (the first {len(report.unreadable)}):\n\n{listed}"


def _split(report: Report) -> str:
    if len(report.rows) < 2:
        return ""
    sides = ", ".join(f"{count:,} to {side} on" for side, count in report.tasks.items())
    together = f" {report.families:,} tasks went along with a near copy." if report.families else ""
    return f"The split is by task: {sides}. No task is on both sides.{together}"


def _lengths(report: Report) -> str:
    if report.lengths is None:
        return ""
    measured = report.lengths.as_json()
    names = ("p50", "p95", "p99", "max", "max_length")
    head = f"## Tokens under the template of {to_single_line(report.lengths.student)}"
    return f"{head}\n\n" + markdown_table(names, [[f"{measured[name]:,}" for name in names]])


def _loading(curation: Curation, origin: Origin) -> str:
    if curation.kind not in COLUMNS:
        return ""
    load = "load_from_disk" if curation.format == "datasets" else "load_dataset"
    lines = [f"from datasets import {load}", "", f"rows = {load}({json.dumps(origin.location)})"]
    block = code_block("\n".join(lines), "python")
    needs = f"This needs datasets {DATASETS_VERSION} or newer."
    return "\n\n".join(["## Load it", block, f"{needs} {_TRAINING.get(curation.to, '')}".rstrip()])


def _columns(curation: Curation) -> str:
    rows = [
        (inline_code(column.name), column.description) for column in COLUMNS.get(curation.kind, ())
    ]
    return "## A row\n\n" + markdown_table(("field", "what"), rows) if rows else ""


def _again(curation: Curation, origin: Origin) -> str:
    blocks = [code_block(origin.command, "bash")] if origin.command else []
    text = json.dumps(_settings(curation), indent=2, ensure_ascii=False, default=str)
    return "\n\n".join(["## Make it again", *blocks, "The settings:", code_block(text, "json")])


def _front_matter(report: Report, curation: Curation, origin: Origin) -> str:
    end = {"jsonl": ".jsonl", "parquet": ".parquet", "datasets": "/*.arrow"}[curation.format]
    files = [{"split": side, "path": f"{side}{end}"} for side in report.rows]
    values: JsonObject = {
        "pretty_name": _title(curation, origin),
        "tags": [*_TAGS, curation.to],
        "task_categories": ["text-generation"],
        "size_categories": size_category(sum(report.rows.values())),
        "configs": [{"config_name": "default", "data_files": files}],
    }
    features = [column.to_feature() for column in COLUMNS.get(curation.kind, ())]
    return build_front_matter(values, features, description=f"Rows {origin.digest}.")


def _settings(curation: Curation) -> JsonObject:
    return {**asdict(curation), "held_out": [str(path) for path in curation.held_out]}
