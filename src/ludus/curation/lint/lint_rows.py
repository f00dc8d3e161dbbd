"""Read JSONL training data row by row, with the location of each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic_core import from_json, to_json

from ludus.data.files import stable_hash
from ludus.data.json_files import numbered_lines
from ludus.data.tool_schema import JsonObject
from ludus.data.training_row import TrainingRow, parse_training_row, row_kind
from ludus.errors import RunError

DATASET_FILES = ("train.jsonl", "test.jsonl")
"""The files that `ludus curate` writes."""

_TRAINED_COLUMNS = ("messages", "prompt", "completion", "chosen", "rejected", "tools")


@dataclass(frozen=True, slots=True)
class SourceLocation:
    """A line of a file, counted from 1."""

    path: Path
    line: int

    def __str__(self) -> str:
        return f"{self.path}:{self.line}"


class DuplicateRowFinder:
    """Finds rows that occurred before.

    Holds a hash and a location per row, about 170 bytes of memory.
    """

    def __init__(self) -> None:
        self._first_seen: dict[int, SourceLocation] = {}

    def find_first(self, columns: JsonObject, location: SourceLocation) -> SourceLocation | None:
        """Return where the same row occurred first; None if this one is the first.

        Compares the columns that are trained on; ids and rewards may differ.
        """
        trained = {name: columns[name] for name in _TRAINED_COLUMNS if name in columns}
        first = self._first_seen.setdefault(stable_hash(to_json(trained).decode()), location)
        return None if first is location else first


def find_data_files(data: Path) -> list[Path]:
    """List the JSONL files of a data set folder, or the one file that is named."""
    files = [data / name for name in DATASET_FILES if (data / name).is_file()]
    if not files:
        other = ""
        if data.suffix == ".parquet" or any(data.glob("*.parquet")):
            other = "Parquet"
        elif any((data / name).is_file() for name in ("dataset_dict.json", "dataset_info.json")):
            other = "a folder of the datasets library"
        if other:
            raise RunError(
                f"{data} is {other}, but lint reads JSONL. `ludus curate --format jsonl` writes it."
            )
    if not data.is_dir():
        return [data]
    if not files:
        raise RunError(
            f"{data} contains neither {' nor '.join(DATASET_FILES)}. Create them with `ludus "
            "curate`, or name a JSONL file."
        )
    return files


def count_rows(files: Sequence[Path]) -> dict[Path, int]:
    """Count the rows of each file. Raises `RunError` if one is empty."""
    rows = {path: sum(1 for _ in numbered_lines(path)) for path in files}
    for path, count in rows.items():
        if not count:
            raise RunError(f"{path} is empty.")
    return rows


def read_lint_rows(path: Path) -> Iterator[tuple[SourceLocation, JsonObject]]:
    """Yield the location and the columns of every row; raise `RunError` for other lines."""
    for number, line in numbered_lines(path):
        location = SourceLocation(path, number)
        try:
            value = from_json(line)
        except ValueError as error:
            raise RunError(
                f"{location} is not JSON: {error}. Each line must be one JSON object."
            ) from None
        if not isinstance(value, dict):
            raise RunError(f"{location} is not a JSON object. Each line must be one JSON object.")
        yield location, value


def parse_lint_row(columns: JsonObject, location: SourceLocation) -> TrainingRow:
    """Parse a row. Raises `InvalidRow` if the content of a column is wrong."""
    if row_kind(columns) is None:
        raise RunError(
            f"{location} has neither `messages` nor `prompt` with `completion` or with `chosen` "
            "and `rejected`, so it cannot be trained on. `ludus curate` writes such rows."
        )
    return parse_training_row(columns)
