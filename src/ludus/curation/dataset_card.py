"""The card and metadata of a curated data set: README.md and curation.json."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ludus.curation.config import CurateConfig
from ludus.curation.curation_report import CurateReport
from ludus.curation.file_formats import COLUMNS_BY_KIND
from ludus.curation.output_dir import CARD_FILE
from ludus.data.hub import (
    DATASETS_VERSION,
    build_front_matter,
    code_block,
    front_matter_size_category,
    inline_code,
    markdown_table,
    to_single_line,
)
from ludus.data.run_folder import versions
from ludus.data.stage_output import CURATION_FILE

_TAGS = ("ludus", "tool-use")
_TITLES = {
    "sft": "Rows for supervised fine-tuning",
    "dpo": "Preference pairs",
    "episodes": "Episodes",
    "openenv": "Rollouts in OpenEnv's format",
    "nemo-gym": "Rollouts in NeMo Gym's format",
    "nemo-gym-input": "Tasks in NeMo Gym's format",
}
_TRAINER_HINTS = {
    "sft": "TRL's `SFTTrainer` accepts the rows as they are; "
    "`SFTConfig(assistant_only_loss=True)` trains on the assistant turns only.",
    "dpo": "TRL's `DPOTrainer` accepts the rows as they are.",
}


@dataclass(frozen=True, slots=True)
class DatasetOrigin:
    """Where the rows come from, and where they can be loaded from."""

    runs: Sequence[str]
    digest: str
    """Hash of the rows."""
    location: str
    """Path or Hub id to load the rows from."""
    command: str | None = None
    """The command line."""


def write_card(
    folder: Path, report: CurateReport, config: CurateConfig, origin: DatasetOrigin
) -> None:
    """Write README.md and curation.json into the folder."""
    metadata = {
        "version": 1,
        "ludus": versions()["ludus"],
        "digest": origin.digest,
        "runs": list(origin.runs),
        "command": origin.command,
        "settings": config.as_json(),
        "report": report.as_json(),
    }
    text = json.dumps(metadata, indent=2, ensure_ascii=False, allow_nan=False, default=str)
    (folder / CURATION_FILE).write_text(f"{text}\n", encoding="utf-8")
    (folder / CARD_FILE).write_text(render_card(report, config, origin), encoding="utf-8")


def render_card(report: CurateReport, config: CurateConfig, origin: DatasetOrigin) -> str:
    columns = COLUMNS_BY_KIND.get(config.row_kind, ())
    suffix = {"jsonl": ".jsonl", "parquet": ".parquet", "datasets": "/*.arrow"}[config.format]
    runs = [to_single_line(Path(run).resolve().name) for run in origin.runs]
    more = f" and {len(runs) - 3} more" if len(runs) > 3 else ""
    title = f"{_TITLES[config.to]} from {', '.join(runs[:3])}{more}"
    front_matter = build_front_matter(
        {
            "pretty_name": title,
            "tags": [*_TAGS, config.to],
            "task_categories": ["text-generation"],
            "size_categories": front_matter_size_category(sum(report.rows.values())),
            "configs": [
                {
                    "config_name": "default",
                    "data_files": [
                        {"split": split, "path": f"{split}{suffix}"} for split in report.rows
                    ],
                }
            ],
        },
        [column.to_feature() for column in columns],
        description=f"Rows {origin.digest}.",
    )
    filters = [["episodes read", "", f"{report.episodes:,}", ""]]
    for step in report.steps:
        detail = to_single_line(step.detail)
        filters.append(
            [inline_code(step.reason), detail, f"{step.remaining:,}", f"{step.removed:,}"]
        )
    filters_table = markdown_table(("step", "", "left", "left out"), filters)
    sections = [f"# {title}", _summary_section(report), f"## Filters\n\n{filters_table}"]
    if report.unreadable:
        locations = "\n".join(f"- {inline_code(location)}" for location in report.unreadable)
        sections.append(f"Unreadable lines (the first {len(report.unreadable)}):\n\n{locations}")
    if len(report.rows) > 1:
        tasks = ", ".join(f"{count:,} in {split}" for split, count in report.tasks.items())
        families = (
            f" {report.families:,} tasks follow a near duplicate into its split."
            if report.families
            else ""
        )
        sections.append(f"The split is by task: {tasks}. No task is in both splits.{families}")
    if report.lengths is not None:
        lengths = report.lengths.as_json()
        names = ("p50", "p95", "p99", "max", "max_length")
        heading = f"## Tokens with the chat template of {to_single_line(report.lengths.student)}"
        table = markdown_table(names, [[f"{lengths[name]:,}" for name in names]])
        sections.append(f"{heading}\n\n{table}")
    if columns:
        sections.append(_loading_section(config, origin))
        rows = [(inline_code(column.name), column.description) for column in columns]
        sections.append("## Columns\n\n" + markdown_table(("column", "description"), rows))
    sections.append("## Reproduce")
    if origin.command:
        sections.append(code_block(origin.command, "bash"))
    config_json = json.dumps(config.as_json(), indent=2, ensure_ascii=False, default=str)
    sections += ["Configuration:", code_block(config_json, "json")]
    return front_matter + "\n" + "\n\n".join(sections) + "\n"


def _summary_section(report: CurateReport) -> str:
    splits = ", ".join(f"{rows:,} {split}" for split, rows in report.rows.items())
    text = f"{sum(report.rows.values()):,} rows ({splits}), from {report.kept:,} of "
    text += f"{report.episodes:,} episodes, curated with Ludus."
    if report.rewards:
        low, mean, high = (f"{report.rewards[name]:.3f}" for name in ("min", "mean", "max"))
        text += f" Their rewards range from {low} to {high}, with a mean over tasks of {mean}."
    if report.tutored:
        text += f" {report.tutored:,} of them have their loss on the replies of a tutor"
        if report.agreement is not None:
            text += f", with whom the student agreed in {report.agreement:.1%} of the turns"
        text += "."
    if report.masked_rows:
        text += (
            f' In {report.masked_rows:,} rows replies with `"weight": 0` are context without loss; '
            "`ludus train sft` masks them, while TRL trains on them."
        )
    return text


def _loading_section(config: CurateConfig, origin: DatasetOrigin) -> str:
    load = "load_from_disk" if config.format == "datasets" else "load_dataset"
    lines = [f"from datasets import {load}", "", f"rows = {load}({json.dumps(origin.location)})"]
    block = code_block("\n".join(lines), "python")
    requirement = f"This requires datasets {DATASETS_VERSION} or newer."
    text = f"{requirement} {_TRAINER_HINTS.get(config.to, '')}".rstrip()
    return f"## Usage\n\n{block}\n\n{text}"
