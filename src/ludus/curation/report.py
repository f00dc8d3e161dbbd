"""The report of `curate`, and the data set's README.md and curation.json, which contain it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from ludus.curation.catalog import UNREADABLE, Catalog, FilterStep
from ludus.curation.config import CurateConfig
from ludus.curation.writers import WrittenRows
from ludus.data.hub import COLUMNS as EPISODE_COLUMNS
from ludus.data.hub import (
    DATASETS_VERSION,
    FLOAT,
    JSON_LIST,
    TEXT,
    Column,
    code_block,
    front_matter_size_category,
    hub_front_matter,
    inline_code,
    markdown_table,
    to_single_line,
)
from ludus.data.run_folder import versions
from ludus.data.stage_output import CURATION_FILE
from ludus.data.tool_schema import JsonObject

CARD_FILE = "README.md"
_MAX_UNREADABLE_SHOWN = 20
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
_TASK_COLUMNS = (
    Column("tools", JSON_LIST, "The tools that were offered, in OpenAI's format."),
    Column("environment", TEXT, "The environment."),
    Column("group_id", TEXT, "The task: the same for all attempts at it."),
)
# Columns whose structure differs from row to row (arguments, schemas) are declared as JSON.
# Otherwise `datasets` would merge the arguments of all tools into one struct full of nulls.
_COLUMNS: Mapping[str, Sequence[Column]] = {
    "sft": (
        Column("messages", JSON_LIST, "The conversation, in OpenAI's format."),
        *_TASK_COLUMNS,
        Column("episode_id", TEXT, "The episode."),
        Column("reward", FLOAT, "The reward of the episode."),
    ),
    "dpo": (
        Column("prompt", JSON_LIST, "The messages before, including the system prompt."),
        Column("chosen", JSON_LIST, "The continuation of the better attempt."),
        Column("rejected", JSON_LIST, "The continuation of the worse attempt."),
        *_TASK_COLUMNS,
        Column("chosen_id", TEXT, "The better episode."),
        Column("rejected_id", TEXT, "The worse episode."),
        Column("chosen_reward", FLOAT, "The reward of the better episode."),
        Column("rejected_reward", FLOAT, "The reward of the worse episode."),
    ),
    "episodes": EPISODE_COLUMNS,
}
"""Columns by kind of row, without the formats of other tools."""


@dataclass(frozen=True, slots=True)
class CurateReport:
    """Numbers of episodes, rows and tasks, and what each filter left out."""

    episodes: int
    kept: int
    steps: tuple[FilterStep, ...]
    left_out: dict[str, int]
    """Number of episodes by reason."""
    rows: dict[str, int]
    """Number of rows by split: `train`, and `test` if there is one."""
    tasks: dict[str, int]
    """Number of tasks by split."""
    families: int = 0
    """Number of tasks that were put into a split because of a near duplicate."""
    unreadable: tuple[str, ...] = ()
    """The first unreadable lines, as `file:line`."""
    rewards: dict[str, float] = field(default_factory=dict)
    """`min` and `max` reward of the kept episodes, and their `mean` over tasks."""
    tutored: int = 0
    """Kept episodes whose rows have their loss on the replies of a tutor."""
    agreement: float | None = None
    """The share of their turns in which student and tutor agree."""
    masked_rows: int = 0
    """Rows in which a reply has a weight of 0, and so no loss."""

    def as_json(self) -> JsonObject:
        return asdict(self)


def build_report(catalog: Catalog, written: WrittenRows, families: int) -> CurateReport:
    """Build the report of `curate` from the filtered catalog and the counts of written rows."""
    tasks = dict(
        catalog.sql(
            "SELECT coalesce(split, 'train'), count(DISTINCT task) FROM episodes "
            "WHERE reason IS NULL GROUP BY 1"
        )
    )
    [(low, high)] = catalog.sql(
        "SELECT min(reward), max(reward) FROM episodes WHERE reason IS NULL"
    )
    mean = catalog.mean_reward
    unreadable = catalog.sql(
        "SELECT rowid FROM episodes WHERE reason = ? ORDER BY rowid LIMIT ?",
        UNREADABLE,
        _MAX_UNREADABLE_SHOWN,
    )
    return CurateReport(
        episodes=catalog.total,
        kept=catalog.kept,
        steps=tuple(catalog.steps),
        left_out=catalog.excluded_counts,
        rows=written.by_split,
        tasks={name: tasks.get(name, 0) for name in written.by_split},
        families=families,
        unreadable=tuple("{}:{}".format(*catalog.location(row)) for (row,) in unreadable),
        rewards={} if mean is None else {"min": low, "mean": mean.value, "max": high},
        tutored=catalog.tutored,
        agreement=written.agreement,
        masked_rows=written.masked,
    )


def write_curation_report(
    folder: Path,
    report: CurateReport,
    config: CurateConfig,
    *,
    runs: Sequence[str],
    digest: str,
    location: str,
    command: str | None,
) -> None:
    """Write the report of `curate` as README.md and curation.json.

    `digest` is a hash of the rows, and `location` the path to load them from.
    """
    metadata = {
        "version": 1,
        "ludus": versions()["ludus"],
        "digest": digest,
        "runs": list(runs),
        "command": command,
        "settings": config.as_json(),
        "report": report.as_json(),
    }
    text = json.dumps(metadata, indent=2, ensure_ascii=False, allow_nan=False, default=str)
    (folder / CURATION_FILE).write_text(f"{text}\n", encoding="utf-8")
    names = [to_single_line(Path(run).resolve().name) for run in runs]
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    title = f"{_TITLES[config.to]} from {', '.join(names[:3])}{more}"
    columns = _COLUMNS.get(config.to, ())
    files = [{"split": split, "path": f"{split}.jsonl"} for split in report.rows]
    front_matter = hub_front_matter(
        {
            "pretty_name": title,
            "tags": ["ludus", "tool-use", config.to],
            "task_categories": ["text-generation"],
            "size_categories": front_matter_size_category(sum(report.rows.values())),
            "configs": [{"config_name": "default", "data_files": files}],
        },
        [column.to_feature() for column in columns],
        description=f"Rows {digest}.",
    )
    sections = [f"# {title}", *_report_sections(report)]
    if columns:
        code = "from datasets import load_dataset\n\n"
        code += f"rows = load_dataset({json.dumps(location)})"
        hint = f"This requires datasets {DATASETS_VERSION} or newer."
        hint = f"{hint} {_TRAINER_HINTS.get(config.to, '')}".rstrip()
        rows = [(inline_code(column.name), column.description) for column in columns]
        sections += [
            f"## Usage\n\n{code_block(code, 'python')}\n\n{hint}",
            "## Columns\n\n" + markdown_table(("column", "description"), rows),
        ]
    sections.append("## Reproduce")
    if command:
        sections.append(code_block(command, "bash"))
    config_json = json.dumps(config.as_json(), indent=2, ensure_ascii=False, default=str)
    sections += ["Configuration:", code_block(config_json, "json")]
    card = front_matter + "\n" + "\n\n".join(sections) + "\n"
    (folder / CARD_FILE).write_text(card, encoding="utf-8")


def _report_sections(report: CurateReport) -> list[str]:
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
    filters = [["episodes read", "", f"{report.episodes:,}", ""]]
    for step in report.steps:
        cells = (f"{step.remaining:,}", f"{step.removed:,}")
        filters.append([inline_code(step.reason), to_single_line(step.detail), *cells])
    table = markdown_table(("step", "", "kept", "removed"), filters)
    sections = [text, f"## Filters\n\n{table}"]
    if report.unreadable:
        locations = "\n".join(f"- {inline_code(location)}" for location in report.unreadable)
        sections.append(f"Unreadable lines (the first {len(report.unreadable)}):\n\n{locations}")
    if len(report.rows) > 1:
        tasks = ", ".join(f"{count:,} in {split}" for split, count in report.tasks.items())
        text = f"The split is by task: {tasks}. No task is in both splits."
        if report.families:
            text += f" {report.families:,} tasks follow a near duplicate into its split."
        sections.append(text)
    return sections
