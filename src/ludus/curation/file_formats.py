"""File formats of a data set: JSONL, Parquet, or a folder of the `datasets` library.

Columns whose structure differs from row to row (arguments, schemas) are declared as JSON.
Otherwise `datasets` would merge the arguments of all tools into one struct full of nulls.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from ludus.data.hub import COLUMNS as EPISODE
from ludus.data.hub import FLOAT, JSON_LIST, TEXT, Column
from ludus.data.tool_schema import JsonObject
from ludus.errors import ConfigError, MissingExtra, RunError

FileFormat = Literal["jsonl", "parquet", "datasets"]

_TASK_COLUMNS = (
    Column("tools", JSON_LIST, "The tools that were offered, in OpenAI's format."),
    Column("environment", TEXT, "The environment."),
    Column("group_id", TEXT, "The task: the same for all attempts at it."),
)
_EPISODE_COLUMNS = (
    *_TASK_COLUMNS,
    Column("episode_id", TEXT, "The episode."),
    Column("reward", FLOAT, "The reward of the episode."),
)
_MESSAGES_COLUMN = Column("messages", JSON_LIST, "The conversation, in OpenAI's format.")
_PROMPT_COLUMN = Column("prompt", JSON_LIST, "The messages before, including the system prompt.")
COLUMNS_BY_KIND: Mapping[str, Sequence[Column]] = {
    "sft": (_MESSAGES_COLUMN, *_EPISODE_COLUMNS),
    "last turn": (
        _PROMPT_COLUMN,
        Column("completion", JSON_LIST, "The last assistant turn."),
        *_EPISODE_COLUMNS,
    ),
    "dpo": (
        _PROMPT_COLUMN,
        Column("chosen", JSON_LIST, "The continuation of the better attempt."),
        Column("rejected", JSON_LIST, "The continuation of the worse attempt."),
        *_TASK_COLUMNS,
        Column("chosen_id", TEXT, "The better episode."),
        Column("rejected_id", TEXT, "The worse episode."),
        Column("chosen_reward", FLOAT, "The reward of the better episode."),
        Column("rejected_reward", FLOAT, "The reward of the worse episode."),
    ),
    "episodes": EPISODE,
}
"""Columns by kind of row, without the formats of other tools."""


def check_format(format: FileFormat, kind: str) -> None:
    """Raise an error if rows of this kind cannot be written in this format."""
    if format == "jsonl":
        return
    if kind not in COLUMNS_BY_KIND:
        raise ConfigError(f"`format` must be jsonl if `to` is {kind}, got {format}.")
    try:
        import datasets  # noqa: F401
    except ImportError:
        raise MissingExtra.of("curate", "Writing Parquet or a datasets folder") from None


def convert_files(
    draft: Path, splits: Sequence[str], format: FileFormat, kind: str, work: Path
) -> None:
    """Convert the JSONL files of a draft to another format, without loading them into memory."""
    if format == "jsonl":
        return
    import datasets
    from datasets.exceptions import DatasetGenerationError

    datasets.disable_progress_bars()
    features = datasets.Features(
        {column.name: _build_file_feature(column.feature_type) for column in COLUMNS_BY_KIND[kind]}
    )
    rows = {}
    for split in splits:
        file = draft / f"{split}.jsonl"
        if not file.stat().st_size:  # `datasets` cannot read an empty file.
            columns: dict[str, list[Any]] = {name: [] for name in features}
            rows[split] = datasets.Dataset.from_dict(columns, features=features)
            continue
        try:
            rows[split] = datasets.Dataset.from_json(
                str(file), features=features, cache_dir=str(work), split="train"
            )
        except DatasetGenerationError as error:
            reason = " ".join(str(error.__cause__ or error).split())
            raise RunError(
                f"The datasets library cannot store the rows: {reason}. Set `format` to jsonl."
            ) from error
    if format == "datasets":
        datasets.DatasetDict(rows).save_to_disk(draft)
    for split in splits:
        if format == "parquet":
            rows[split].to_parquet(draft / f"{split}.parquet")
        (draft / f"{split}.jsonl").unlink()


def _build_file_feature(feature_type: JsonObject) -> Any:
    """Build the feature in which Parquet files and `datasets` folders store a column."""
    from datasets import Json, List, Value

    if "struct" in feature_type:
        return {field["name"]: _build_file_feature(field) for field in feature_type["struct"]}
    dtype = feature_type.get("dtype") or feature_type["list"]
    feature = Json() if dtype == "json" else Value(dtype)
    return List(feature) if "list" in feature_type else feature
