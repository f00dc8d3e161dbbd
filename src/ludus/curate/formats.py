"""How rows lie on the disk: as JSONL, as Parquet, or as a folder that `datasets` opens.

What differs from row to row (a tool's arguments, a schema) is declared as JSON. Left to itself,
`datasets` would merge the arguments of all tools into one struct and fill it up with nulls.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from ludus.data.columns import COLUMNS as EPISODE
from ludus.data.columns import FLOAT, JSON_LIST, TEXT, Column
from ludus.data.tools import JsonObject
from ludus.errors import ConfigError, MissingExtra, RunError

if TYPE_CHECKING:
    from datasets import Features

Format = Literal["jsonl", "parquet", "datasets"]

_ASKED = (
    Column("tools", JSON_LIST, "The tools that were offered, in OpenAI's form."),
    Column("environment", TEXT, "What was played."),
    Column("group_id", TEXT, "The task: the same for all attempts at it."),
)
_ONE = (
    *_ASKED,
    Column("episode_id", TEXT, "The episode that it was made from."),
    Column("reward", FLOAT, "What the episode was worth."),
)
_MESSAGES = Column("messages", JSON_LIST, "The conversation, in OpenAI's form.")
_PROMPT = Column("prompt", JSON_LIST, "What stood before, the system prompt included.")
COLUMNS: Mapping[str, Sequence[Column]] = {
    "sft": (_MESSAGES, *_ONE),
    "last turn": (_PROMPT, Column("completion", JSON_LIST, "The model's last turn."), *_ONE),
    "dpo": (
        _PROMPT,
        Column("chosen", JSON_LIST, "What the better attempt said from there on."),
        Column("rejected", JSON_LIST, "What the worse one said."),
        *_ASKED,
        Column("chosen_id", TEXT, "The better episode."),
        Column("rejected_id", TEXT, "The worse one."),
        Column("chosen_reward", FLOAT, "What the better one was worth."),
        Column("rejected_reward", FLOAT, "What the worse one was worth."),
    ),
    "episodes": EPISODE,
}
"""By what a row is; formats of other programs are theirs to describe."""


def check_format(format: Format, kind: str) -> None:
    """Whether rows of this kind can lie on the disk like that, before any work."""
    if format == "jsonl":
        return
    if kind not in COLUMNS:
        raise ConfigError(f"--format {format} is not for --to {kind}, which is a JSONL file.")
    _datasets()


def convert(draft: Path, sides: Sequence[str], format: Format, kind: str, work: Path) -> None:
    """Turn the draft's JSONL files into another format. They are streamed, never held."""
    if format == "jsonl":
        return
    datasets = _datasets()
    features = features_of(COLUMNS[kind])
    made = {side: _dataset(draft / f"{side}.jsonl", features, work) for side in sides}
    if format == "datasets":
        datasets.DatasetDict(made).save_to_disk(draft)
    for side, rows in made.items():
        if format == "parquet":
            rows.to_parquet(draft / f"{side}.parquet")
        (draft / f"{side}.jsonl").unlink()


def _dataset(file: Path, features: Features, work: Path) -> Any:
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


def features_of(columns: Sequence[Column]) -> Features:
    from datasets import Features

    return Features({column.name: _feature(column.feature_type) for column in columns})


def _feature(form: JsonObject) -> Any:
    from datasets import Json, List, Value

    if "struct" in form:
        return {field["name"]: _feature(field) for field in form["struct"]}
    kind = form.get("dtype") or form["list"]
    single = Json() if kind == "json" else Value(kind)
    return List(single) if "list" in form else single


def _datasets() -> Any:
    try:
        import datasets
    except ImportError:
        raise MissingExtra.of("curate", "Writing Parquet or a datasets folder") from None
    datasets.disable_progress_bars()
    return datasets
