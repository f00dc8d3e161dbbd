"""How rows lie on the disk: as JSONL, as Parquet, or as a folder that `datasets` opens.

What differs from row to row (a tool's arguments, a schema) is declared as JSON. Left to itself,
`datasets` would merge the arguments of all tools into one struct and fill it up with nulls.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from ludus.data.schema import COLUMNS as EPISODE
from ludus.data.schema import FLOAT, JSON_LIST, TEXT, Column
from ludus.data.tool_schema import JsonObject
from ludus.errors import ConfigError, MissingExtra, RunError

if TYPE_CHECKING:
    from datasets import Features

FileFormat = Literal["jsonl", "parquet", "datasets"]

_TASK_COLUMNS = (
    Column("tools", JSON_LIST, "The tools that were offered, in OpenAI's form."),
    Column("environment", TEXT, "What was played."),
    Column("group_id", TEXT, "The task: the same for all attempts at it."),
)
_EPISODE_COLUMNS = (
    *_TASK_COLUMNS,
    Column("episode_id", TEXT, "The episode that it was made from."),
    Column("reward", FLOAT, "What the episode was worth."),
)
_MESSAGES_COLUMN = Column("messages", JSON_LIST, "The conversation, in OpenAI's form.")
_PROMPT_COLUMN = Column("prompt", JSON_LIST, "What stood before, the system prompt included.")
COLUMNS_BY_KIND: Mapping[str, Sequence[Column]] = {
    "sft": (_MESSAGES_COLUMN, *_EPISODE_COLUMNS),
    "last turn": (
        _PROMPT_COLUMN,
        Column("completion", JSON_LIST, "The model's last turn."),
        *_EPISODE_COLUMNS,
    ),
    "dpo": (
        _PROMPT_COLUMN,
        Column("chosen", JSON_LIST, "What the better attempt said from there on."),
        Column("rejected", JSON_LIST, "What the worse one said."),
        *_TASK_COLUMNS,
        Column("chosen_id", TEXT, "The better episode."),
        Column("rejected_id", TEXT, "The worse one."),
        Column("chosen_reward", FLOAT, "What the better one was worth."),
        Column("rejected_reward", FLOAT, "What the worse one was worth."),
    ),
    "episodes": EPISODE,
}
"""By what a row is; formats of other programs are theirs to describe."""


def check_format(format: FileFormat, kind: str) -> None:
    """Whether rows of this kind can lie on the disk like that, before any work."""
    if format == "jsonl":
        return
    if kind not in COLUMNS_BY_KIND:
        raise ConfigError(f"--format {format} is not for --to {kind}, which is a JSONL file.")
    _import_datasets()


def convert_files(
    draft: Path, sides: Sequence[str], format: FileFormat, kind: str, work: Path
) -> None:
    """Turn the draft's JSONL files into another format. They are streamed, never held."""
    if format == "jsonl":
        return
    datasets = _import_datasets()
    features = build_features(COLUMNS_BY_KIND[kind])
    made = {side: _load_dataset(draft / f"{side}.jsonl", features, work) for side in sides}
    if format == "datasets":
        datasets.DatasetDict(made).save_to_disk(draft)
    for side, rows in made.items():
        if format == "parquet":
            rows.to_parquet(draft / f"{side}.parquet")
        (draft / f"{side}.jsonl").unlink()


def _load_dataset(file: Path, features: Features, work: Path) -> Any:
    from datasets import Dataset
    from datasets.exceptions import DatasetGenerationError

    if not file.stat().st_size:  # Which `datasets` does not read.
        return Dataset.from_dict({name: [] for name in features}, features=features)
    try:
        return Dataset.from_json(str(file), features=features, cache_dir=str(work), split="train")
    except DatasetGenerationError as error:
        why = " ".join(str(error.__cause__ or error).split())
        raise RunError(
            f"`datasets` cannot hold the rows: {why}. Use --format jsonl, which can."
        ) from error


def build_features(columns: Sequence[Column]) -> Features:
    from datasets import Features

    return Features({column.name: _build_feature(column.feature_type) for column in columns})


def _build_feature(form: JsonObject) -> Any:
    from datasets import Json, List, Value

    if "struct" in form:
        return {field["name"]: _build_feature(field) for field in form["struct"]}
    kind = form.get("dtype") or form["list"]
    single = Json() if kind == "json" else Value(kind)
    return List(single) if "list" in form else single


def _import_datasets() -> Any:
    try:
        import datasets
    except ImportError:
        raise MissingExtra.of("curate", "Writing Parquet or a datasets folder") from None
    datasets.disable_progress_bars()
    return datasets
