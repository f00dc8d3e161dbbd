"""Where the rows of a data set lie, and how they come from there, some at a time.

A folder that `ludus curate` wrote in any of its formats, one `.jsonl` or `.parquet` file, or a data
set on the Hub. JSONL is read as it stands, line by line: what `datasets` makes of JSON has other
numbers and other columns. What a row means is `ludus.train.data.row_schema`'s business.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from pydantic_core import from_json

from ludus.data.hub_id import is_hub_id, similar_path_hint
from ludus.data.tool_schema import JsonObject
from ludus.errors import ConfigError, MissingExtra
from ludus.train.output.metadata import file_digest

NumberedRow = tuple[int, bytes | JsonObject]
"""A row and its place, counted from 1; of a file, its line."""
TRAIN_SPLIT, TEST_SPLIT = "train", "test"
CURATION_FILE = "curation.json"
_SUFFIXES = (".jsonl", ".parquet")


@dataclass(frozen=True, slots=True)
class JsonlRows:
    """The rows of a JSONL file, unread."""

    file: Path

    def location(self, number: int) -> str:
        return f"{self.file}:{number}"

    def batches(self, size: int) -> Iterator[list[NumberedRow]]:
        with self.file.open("rb") as lines:
            rows: Iterator[NumberedRow] = (
                (number, line) for number, line in enumerate(lines, 1) if line.strip()
            )
            while batch := list(islice(rows, size)):
                yield batch

    @property
    def files(self) -> Sequence[Path]:
        return (self.file,)


@dataclass(frozen=True, slots=True)
class DatasetRows:
    """The rows of a `datasets.Dataset`."""

    name: str
    rows: Any
    files: Sequence[Path]

    def location(self, number: int) -> str:
        return f"{self.name} row {number}"

    def batches(self, size: int) -> Iterator[list[NumberedRow]]:
        loose = {name for name, kind in self.rows.features.items() if "Json" not in repr(kind)}
        rows = enumerate(self.rows, 1)
        while batch := list(islice(rows, size)):
            yield [(number, _drop_null_fields(row, loose)) for number, row in batch]


Split = JsonlRows | DatasetRows


@dataclass(frozen=True, slots=True)
class TrainingData:
    """What is trained on, and what the loss is measured on besides."""

    name: str
    """As it was typed."""
    train: Split
    test: Split | None = None
    curation: Mapping[str, Any] | None = None
    """What `curation.json` says, where there is one."""

    @property
    def digest(self) -> str:
        return file_digest(*self.train.files)

    def measured_max_length(self, model: str) -> int | None:
        """The `max_length` that curating found for this model; None: not measured for it."""
        lengths = ((self.curation or {}).get("report") or {}).get("lengths") or {}
        return lengths.get("max_length") if lengths.get("student") == model else None

    @property
    def task(self) -> JsonObject:
        """The arguments of reset in the runs that it was curated from, where all have the same."""
        runs = (self.curation or {}).get("runs") or ()
        tasks = [_read_task(Path(run)) for run in runs if isinstance(run, str)]
        return tasks[0] if tasks and all(task == tasks[0] for task in tasks) else {}


def open_data(data: str | Path) -> TrainingData:
    """Find the rows. None is read yet."""
    name = str(data)
    path = Path(data).expanduser()
    if path.is_dir():
        return _open_folder(name, path)
    if path.is_file():
        return TrainingData(name, _open_file(path))
    if "/" not in name or not is_hub_id(name, file_suffixes=_SUFFIXES):
        hint = similar_path_hint(name) or (
            "Name a folder that `ludus curate` wrote, a .jsonl or .parquet file, or org/name on "
            "the Hub."
        )
        raise ConfigError(f"There is no data set {name!r}: no such folder or file. {hint}")
    return _load_from_hub(name)


def _open_folder(name: str, folder: Path) -> TrainingData:
    about = _read_curation(folder)
    for end in _SUFFIXES:
        if (train := folder / f"{TRAIN_SPLIT}{end}").is_file():
            test = folder / f"{TEST_SPLIT}{end}"
            return TrainingData(
                name, _open_file(train), _open_file(test) if test.is_file() else None, about
            )
    if (folder / "dataset_dict.json").is_file():
        return _from_splits(name, _load_from_disk(folder), about)
    if (folder / "episodes.jsonl").is_file():
        raise ConfigError(
            f"{name} holds episodes, and training takes rows. Make them first: "
            f"ludus curate {name} -o rows"
        )
    raise ConfigError(
        f"{name} holds no {TRAIN_SPLIT}.jsonl or {TRAIN_SPLIT}.parquet. Name a folder that `ludus curate` "
        "wrote."
    )


def _read_curation(folder: Path) -> Mapping[str, Any] | None:
    try:
        found = from_json((folder / CURATION_FILE).read_bytes())
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None


def _read_task(run: Path) -> JsonObject:
    """What every episode of a run was begun with; nothing where the run is gone."""
    try:
        found = from_json((run / "run.json").read_bytes())["settings"]["task"]
    except (OSError, ValueError, LookupError, TypeError):
        return {}
    return found if isinstance(found, dict) else {}


def _open_file(path: Path) -> Split:
    if path.suffix == ".jsonl":
        return JsonlRows(path)
    if path.suffix != ".parquet":
        raise ConfigError(f"{path} is neither .jsonl nor .parquet, the two forms that are read.")
    datasets = _import_datasets()
    try:
        # In memory, because the cache that it would go to is nobody's to clean up.
        rows = datasets.Dataset.from_parquet(str(path), keep_in_memory=True)
    except Exception as error:
        said = " ".join(str(error.__cause__ or error).split())
        raise ConfigError(f"{path} cannot be read as Parquet: {said[:200]}") from error
    return DatasetRows(str(path), rows, (path,))


def _load_from_disk(folder: Path) -> Any:
    datasets = _import_datasets()
    try:
        return datasets.load_from_disk(str(folder))
    except Exception as error:
        said = " ".join(str(error).split())[:200]
        raise ConfigError(f"{folder} cannot be read as a folder of datasets: {said}") from error


def _load_from_hub(name: str) -> TrainingData:
    datasets = _import_datasets()
    try:
        splits = datasets.load_dataset(name)
    except Exception as error:
        said = " ".join(str(error).split())[:200]
        raise ConfigError(
            f"There is no folder {name} here, and the data set {name} on the Hub cannot be read: "
            f"{said}"
        ) from error
    return _from_splits(name, splits, None)


def _from_splits(name: str, splits: Any, about: Mapping[str, Any] | None) -> TrainingData:
    if not isinstance(splits, Mapping) or TRAIN_SPLIT not in splits:
        raise ConfigError(f"{name} has no split called {TRAIN_SPLIT}.")
    test = (
        _wrap_dataset(name, TEST_SPLIT, splits[TEST_SPLIT])
        if TEST_SPLIT in splits and len(splits[TEST_SPLIT])
        else None
    )
    return TrainingData(name, _wrap_dataset(name, TRAIN_SPLIT, splits[TRAIN_SPLIT]), test, about)


def _wrap_dataset(name: str, split: str, rows: Any) -> DatasetRows:
    files = tuple(Path(file["filename"]) for file in rows.cache_files)
    return DatasetRows(f"{name} {split}", rows, files)


def _drop_null_fields(row: JsonObject, loose: set[str]) -> JsonObject:
    """Without the nulls with which Arrow fills up a struct: they stand for what is not there."""
    return {name: _prune_nulls(value) if name in loose else value for name, value in row.items()}


def _prune_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _prune_nulls(item) for key, item in value.items() if item is not None}
    return [_prune_nulls(item) for item in value] if isinstance(value, list) else value


def _import_datasets() -> Any:
    try:
        import datasets
    except ImportError:
        raise MissingExtra.of("train", "Reading this data set") from None
    datasets.disable_progress_bars()
    return datasets
