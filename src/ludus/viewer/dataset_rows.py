"""Rows of data sets, and the tokenizers that show tokens."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Self

from pydantic_core import from_json

from ludus.curation.catalog import CatalogLines
from ludus.data.messages import prompt_text
from ludus.data.stage_output import StageOutput
from ludus.data.tool_schema import JsonObject
from ludus.errors import RunError

if TYPE_CHECKING:
    from ludus.curation.lint.student import Student

_EXCERPT_CHARS = 200
_FACTS = (
    *("episode_id", "chosen_id", "rejected_id", "environment", "reward"),
    *("chosen_reward", "rejected_reward", "task_id"),
)


class DatasetRows:
    """Random access to the rows of data sets; files are indexed at the first access."""

    def __init__(self) -> None:
        self._stack = ExitStack()
        self._lock = Lock()
        self._files: dict[tuple[Path, int, int], JsonlRows] = {}

    def close(self) -> None:
        self._stack.close()

    def page(self, entry: StageOutput, split: str, offset: int, limit: int) -> JsonObject:
        """A few facts of some rows, and how many there are."""
        file = self._open(entry, split)
        rows: list[JsonObject] = []
        for number, row in enumerate(file.read(offset, offset + limit), offset):
            facts = {name: row[name] for name in _FACTS if row.get(name) is not None}
            question = ""
            with suppress(KeyError, TypeError, AttributeError):
                question = prompt_text(row.get("messages") or row.get("prompt") or ())
            rows.append({"number": number, **facts, "question": question[:_EXCERPT_CHARS]})
        return {"total": file.count_rows(), "offset": offset, "rows": rows}

    def read(self, entry: StageOutput, split: str, number: int) -> JsonObject:
        """One row, counted from 0."""
        rows = self._open(entry, split).read(number, number + 1)
        if not rows:
            raise RunError(f"{entry.shown_path} has no row {number} in {split}.")
        return rows[0]

    def _open(self, entry: StageOutput, split: str) -> JsonlRows:
        path = entry.rows.get(split)
        if path is None:
            raise RunError(
                f"{entry.shown_path} has no {split}.jsonl. Other formats cannot be viewed: write "
                "the data set again with `ludus curate`."
            )
        try:
            status = path.stat()
        except OSError as error:
            raise RunError(f"{path} cannot be read: {error.strerror or error}.") from None
        key = path, status.st_size, status.st_mtime_ns
        with self._lock:
            if key not in self._files:
                self._files[key] = self._stack.enter_context(JsonlRows(path))
            return self._files[key]


class JsonlRows:
    """The rows of a JSONL file; it is indexed when it is opened."""

    def __init__(self, file: Path) -> None:
        self._lines = CatalogLines([file])

    def __enter__(self) -> Self:
        self._lines.count_lines(0)
        return self

    def __exit__(self, *error: object) -> None:
        self._lines.__exit__(*error)

    def count_rows(self) -> int:
        return self._lines.count_lines(0)

    def read(self, start: int, stop: int) -> list[JsonObject]:
        """Read the rows from `start` to before `stop`; what is not an object is an empty row."""
        numbers = range(start, min(stop, self.count_rows()))
        return [_parse_row(self._lines.read_line(0, number)) for number in numbers]


def _parse_row(line: bytes) -> JsonObject:
    try:
        fields = from_json(line)
    except ValueError:
        return {}
    return fields if isinstance(fields, dict) else {}


def forbid_downloads() -> None:
    """Keep the tokenizers off the network; to be called before Hugging Face is imported."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    os.environ["TOKENIZERS_PARALLELISM"] = "false"


class Tokenizers:
    """The tokenizers of the models that were asked for. One request at a time uses them."""

    def __init__(self) -> None:
        self._students: dict[str, Student] = {}
        self._lock = Lock()

    def split_tokens(self, model: str, ids: Sequence[int]) -> list[str]:
        """The text of each token."""
        with self._lock:
            tokenizer = self._load(model).tokenizer
            vocabulary = len(tokenizer)
            if any(not 0 <= each < vocabulary for each in ids):
                raise RunError(f"These tokens are not of {model}: it has {vocabulary:,} tokens.")
            return [str(tokenizer.decode([each])) for each in ids]

    def _load(self, name: str) -> Student:
        if name not in self._students:
            from ludus.curation.lint.student import Student

            self._students[name] = Student.load(name)
        return self._students[name]
