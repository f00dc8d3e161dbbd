"""Loading of training data: folders, files and data sets on the Hub, as batches of rows.

A folder that `ludus curate` wrote, one `.jsonl` or `.parquet` file, or a data
set on the Hub. JSONL is read line by line, without `datasets`, which would change numbers and add
columns.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ludus.data.files import file_digest
from ludus.data.hub import is_hub_id
from ludus.data.json_files import numbered_lines, object_field, prune_nulls, read_json_object
from ludus.data.run_folder import RUN_FILE
from ludus.data.stage_output import CURATION_FILE
from ludus.data.tool_schema import JsonObject
from ludus.errors import ConfigError, MissingExtra, similar_path_hint

if TYPE_CHECKING:
    from datasets import Dataset

NumberedRow = tuple[int, bytes | JsonObject]
"""A row and its number, counted from 1; for a file, its line."""
TRAIN_SPLIT, TEST_SPLIT = "train", "test"
_SUFFIXES = (".jsonl", ".parquet")


@dataclass(frozen=True, slots=True)
class JsonlRows:
    """The rows of a JSONL file, read line by line."""

    file: Path

    @property
    def files(self) -> Sequence[Path]:
        return (self.file,)

    def location(self, number: int) -> str:
        return f"{self.file}:{number}"

    def rows(self) -> Iterator[NumberedRow]:
        yield from numbered_lines(self.file)


@dataclass(frozen=True, slots=True)
class DatasetRows:
    """The rows of a `datasets.Dataset`."""

    name: str
    dataset: Dataset
    files: Sequence[Path]

    def location(self, number: int) -> str:
        return f"{self.name} row {number}"

    def rows(self) -> Iterator[NumberedRow]:
        # Arrow fills the missing fields of a struct with nulls; columns of JSON text have none.
        features = self.dataset.features
        structs = {name for name, kind in features.items() if "Json" not in repr(kind)}
        for number, row in enumerate(self.dataset, 1):
            yield (
                number,
                {
                    name: prune_nulls(value) if name in structs else value
                    for name, value in row.items()
                },
            )


Split = JsonlRows | DatasetRows


@dataclass(frozen=True, slots=True)
class TrainingData:
    """A training split, and the test split on which the eval loss is measured."""

    name: str
    """As the caller gave it."""
    train: Split
    test: Split | None = None
    curation: JsonObject | None = None
    """The content of `curation.json`, if there is one."""

    @property
    def digest(self) -> str:
        return file_digest(*self.train.files)

    def run_setting(self, name: str, default: Any = None) -> Any:
        """A setting of the runs that the rows come from; the default if they differ or are gone."""
        runs = [run for run in (self.curation or {}).get("runs") or () if isinstance(run, str)]
        records = (read_json_object(Path(run) / RUN_FILE) for run in runs)
        values = [object_field(record, "settings").get(name, default) for record in records]
        return values[0] if values and all(value == values[0] for value in values) else default


def open_data(data: str | Path) -> TrainingData:
    """Find the rows, without reading them."""
    name = str(data)
    path = Path(data).expanduser()
    if path.is_dir():
        curation = read_json_object(path / CURATION_FILE) or None
        for suffix in _SUFFIXES:
            train, test = path / f"{TRAIN_SPLIT}{suffix}", path / f"{TEST_SPLIT}{suffix}"
            if train.is_file():
                test_rows = _open_file(test) if test.is_file() else None
                return TrainingData(name, _open_file(train), test_rows, curation)
        if (path / "episodes.jsonl").is_file():
            raise ConfigError(
                f"{name} holds episodes, and training takes rows. Make them first: "
                f"ludus curate {name} -o rows"
            )
        raise ConfigError(
            f"{name} holds no {TRAIN_SPLIT}.jsonl or {TRAIN_SPLIT}.parquet. Name a folder that "
            "`ludus curate` wrote."
        )
    if path.is_file():
        return TrainingData(name, _open_file(path))
    if path.exists():
        raise ConfigError(f"The data set {name!r} is neither a folder nor a regular file.")
    if "/" not in name or not is_hub_id(name, file_suffixes=_SUFFIXES):
        hint = similar_path_hint(name) or (
            "Name a folder that `ludus curate` wrote, a .jsonl or .parquet file, or org/name on "
            "the Hub."
        )
        raise ConfigError(f"There is no data set {name!r}: no such folder or file. {hint}")
    datasets = _import_datasets_library()
    try:
        splits = datasets.load_dataset(name)
    except Exception as error:
        reason = " ".join(str(error).split())[:200]
        raise ConfigError(
            f"There is no folder {name} here, and the data set {name} on the Hub cannot be read: "
            f"{reason}"
        ) from error
    if TRAIN_SPLIT not in splits:
        raise ConfigError(f"{name} has no split called {TRAIN_SPLIT}.")
    parts = {
        split: DatasetRows(
            f"{name} {split}", rows, tuple(Path(file["filename"]) for file in rows.cache_files)
        )
        for split, rows in splits.items()
        if len(rows) or split == TRAIN_SPLIT
    }
    return TrainingData(name, parts[TRAIN_SPLIT], parts.get(TEST_SPLIT))


def _open_file(path: Path) -> Split:
    if path.suffix == ".jsonl":
        return JsonlRows(path)
    if path.suffix != ".parquet":
        raise ConfigError(f"{path} is neither .jsonl nor .parquet.")
    datasets = _import_datasets_library()
    try:
        # In memory: nobody would clean up the cache that it would otherwise be converted into.
        rows = datasets.Dataset.from_parquet(str(path), keep_in_memory=True)
    except Exception as error:
        reason = " ".join(str(error.__cause__ or error).split())
        raise ConfigError(f"{path} cannot be read as Parquet: {reason[:200]}") from error
    return DatasetRows(str(path), rows, (path,))


def _import_datasets_library() -> Any:
    """The `datasets` library, for loading training data without progress bars."""
    try:
        import datasets
    except ImportError:
        raise MissingExtra.of("train", "Reading this data set") from None
    datasets.disable_progress_bars()
    return datasets
