"""What a curated data set says about itself: README.md for people, curation.json for programs.

Both are written from the same report, so they cannot differ.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from ludus.curation.config import CurateConfig, CurateReport
from ludus.curation.file_formats import COLUMNS_BY_KIND
from ludus.curation.output_dir import CARD_FILE, METADATA_FILE
from ludus.data.markdown import (
    build_front_matter,
    code_block,
    inline_code,
    markdown_table,
    size_category,
    to_single_line,
)
from ludus.data.schema import DATASETS_VERSION
from ludus.data.tool_schema import JsonObject
from ludus.data.versions import versions

_TAGS = ("ludus", "tool-use")
_TITLES = {
    "sft": "Rows for supervised fine-tuning",
    "dpo": "Preference pairs",
    "episodes": "Episodes",
    "openenv": "Rollouts in OpenEnv's form",
    "nemo-gym": "Rollouts in NeMo Gym's form",
    "nemo-gym-input": "Tasks in NeMo Gym's form",
}
_TRAINER_HINTS = {
    "sft": "TRL's `SFTTrainer` takes the rows as they are; `SFTConfig(assistant_only_loss=True)` "
    "trains on what the model said and on nothing else.",
    "dpo": "TRL's `DPOTrainer` takes the rows as they are.",
}


@dataclass(frozen=True, slots=True)
class DatasetOrigin:
    """What only the maker of the rows knows of them."""

    runs: Sequence[str]
    digest: str
    """Of the rows: others have another."""
    location: str
    """Where they can be loaded from."""
    command: str | None = None
    """What was typed."""


def write_card(
    folder: Path, report: CurateReport, config: CurateConfig, origin: DatasetOrigin
) -> None:
    """Write README.md and curation.json into the folder."""
    about = {
        "version": 1,
        "ludus": versions()["ludus"],
        "digest": origin.digest,
        "runs": list(origin.runs),
        "settings": _config_json(config),
        "report": report.as_json(),
    }
    text = json.dumps(about, indent=2, ensure_ascii=False, allow_nan=False, default=str)
    (folder / METADATA_FILE).write_text(f"{text}\n", encoding="utf-8")
    (folder / CARD_FILE).write_text(render_card(report, config, origin), encoding="utf-8")


def previous_digest(folder: Path, config: CurateConfig, runs: Sequence[str]) -> str | None:
    """The digest of a data set that the same options made, from these runs or some of them."""
    try:
        about = json.loads((folder / METADATA_FILE).read_bytes())
        same = about["settings"] == json.loads(json.dumps(_config_json(config), default=str))
        return str(about["digest"]) if same and set(about["runs"]) <= set(runs) else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def render_card(report: CurateReport, config: CurateConfig, origin: DatasetOrigin) -> str:
    parts = (
        f"# {_title(config, origin)}",
        _summary(report, config),
        "## What was left out\n\n" + _steps_table(report),
        _unreadable_list(report),
        _split_section(report),
        _lengths_section(report),
        _loading_section(config, origin),
        _columns_section(config),
        _reproduce_section(config, origin),
    )
    head = _front_matter(report, config, origin)
    return head + "\n" + "\n\n".join(filter(None, parts)) + "\n"


def _title(config: CurateConfig, origin: DatasetOrigin) -> str:
    runs = [to_single_line(Path(run).resolve().name) for run in origin.runs]
    named = ", ".join(runs[:3])
    more = f" and {len(runs) - 3} more" if len(runs) > 3 else ""
    return f"{_TITLES[config.to]} from {named}{more}"


def _summary(report: CurateReport, config: CurateConfig) -> str:
    many = {side: f"{rows:,}" for side, rows in report.rows.items()}
    rows = " and ".join(f"{count} to {side} on" for side, count in many.items())
    said = f"{sum(report.rows.values()):,} rows ({rows}), from {report.kept:,} of "
    said += f"{report.episodes:,} episodes that were curated with Ludus."
    if report.rewards:
        low, mean, high = (f"{report.rewards[name]:.3f}" for name in ("min", "mean", "max"))
        said += f" Their rewards lie between {low} and {high}, {mean} on average."
    return said


def _steps_table(report: CurateReport) -> str:
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


def _unreadable_list(report: CurateReport) -> str:
    if not report.unreadable:
        return ""
    listed = "\n".join(f"- {inline_code(place)}" for place in report.unreadable)
    return f"Lines that are no episode (the first {len(report.unreadable)}):\n\n{listed}"


def _split_section(report: CurateReport) -> str:
    if len(report.rows) < 2:
        return ""
    sides = ", ".join(f"{count:,} to {side} on" for side, count in report.tasks.items())
    together = f" {report.families:,} tasks went along with a near copy." if report.families else ""
    return f"The split is by task: {sides}. No task is on both sides.{together}"


def _lengths_section(report: CurateReport) -> str:
    if report.lengths is None:
        return ""
    measured = report.lengths.as_json()
    names = ("p50", "p95", "p99", "max", "max_length")
    head = f"## Tokens under the template of {to_single_line(report.lengths.student)}"
    return f"{head}\n\n" + markdown_table(names, [[f"{measured[name]:,}" for name in names]])


def _loading_section(config: CurateConfig, origin: DatasetOrigin) -> str:
    if config.row_kind not in COLUMNS_BY_KIND:
        return ""
    load = "load_from_disk" if config.format == "datasets" else "load_dataset"
    lines = [f"from datasets import {load}", "", f"rows = {load}({json.dumps(origin.location)})"]
    block = code_block("\n".join(lines), "python")
    needs = f"This needs datasets {DATASETS_VERSION} or newer."
    return "\n\n".join(
        ["## Load it", block, f"{needs} {_TRAINER_HINTS.get(config.to, '')}".rstrip()]
    )


def _columns_section(config: CurateConfig) -> str:
    rows = [
        (inline_code(column.name), column.description)
        for column in COLUMNS_BY_KIND.get(config.row_kind, ())
    ]
    return "## A row\n\n" + markdown_table(("field", "what"), rows) if rows else ""


def _reproduce_section(config: CurateConfig, origin: DatasetOrigin) -> str:
    blocks = [code_block(origin.command, "bash")] if origin.command else []
    text = json.dumps(_config_json(config), indent=2, ensure_ascii=False, default=str)
    return "\n\n".join(["## Make it again", *blocks, "The settings:", code_block(text, "json")])


def _front_matter(report: CurateReport, config: CurateConfig, origin: DatasetOrigin) -> str:
    end = {"jsonl": ".jsonl", "parquet": ".parquet", "datasets": "/*.arrow"}[config.format]
    files = [{"split": side, "path": f"{side}{end}"} for side in report.rows]
    values: JsonObject = {
        "pretty_name": _title(config, origin),
        "tags": [*_TAGS, config.to],
        "task_categories": ["text-generation"],
        "size_categories": size_category(sum(report.rows.values())),
        "configs": [{"config_name": "default", "data_files": files}],
    }
    features = [column.to_feature() for column in COLUMNS_BY_KIND.get(config.row_kind, ())]
    return build_front_matter(values, features, description=f"Rows {origin.digest}.")


def _config_json(config: CurateConfig) -> JsonObject:
    return {**asdict(config), "held_out": [str(path) for path in config.held_out]}
