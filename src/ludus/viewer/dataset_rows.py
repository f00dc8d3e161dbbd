"""Rows of data sets, and what curation removed."""

from __future__ import annotations

from collections import Counter
from contextlib import ExitStack
from itertools import islice
from pathlib import Path
from threading import Lock
from typing import Any

from pydantic_core import from_json

from ludus.curation.line_index import LineIndex
from ludus.data.jsonl import numbered_lines
from ludus.data.messages import prompt_text
from ludus.data.tool_schema import JsonObject
from ludus.errors import RunError
from ludus.viewer.folders import Entry

LEFT_OUT_FILE = "left_out.jsonl"
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
        self._indexes: dict[tuple[Path, int, int], LineIndex] = {}

    def close(self) -> None:
        self._stack.close()

    def page(self, entry: Entry, split: str, offset: int, limit: int) -> JsonObject:
        """A few facts of some rows, and how many there are."""
        index = self._open(entry, split)
        total = index.count_lines(0)
        numbers = range(offset, min(offset + limit, total))
        rows = [_row_facts(number, _parse_row(index.read_line(0, number))) for number in numbers]
        return {"total": total, "offset": offset, "rows": rows}

    def read(self, entry: Entry, split: str, number: int) -> JsonObject:
        """One row, counted from 0."""
        index = self._open(entry, split)
        if not 0 <= number < index.count_lines(0):
            raise RunError(f"{entry.key} has no row {number} in {split}.")
        return _parse_row(index.read_line(0, number))

    def _open(self, entry: Entry, split: str) -> LineIndex:
        file = (entry.rows or {}).get(split)
        if file is None:
            raise RunError(
                f"{entry.key} has no {split}.jsonl. Other formats cannot be viewed: write the data "
                "set again with `ludus curate --format jsonl`."
            )
        status = file.stat()
        key = file, status.st_size, status.st_mtime_ns
        with self._lock:
            if key not in self._indexes:
                index = self._stack.enter_context(LineIndex([file]))
                index.count_lines(0)
                self._indexes[key] = index
            return self._indexes[key]


def read_left_out(
    entry: Entry, keys: dict[Path, str], reason: str, offset: int, limit: int
) -> JsonObject:
    """Excluded episodes, if `ludus curate --explain` listed them; `keys` are those of runs."""
    file = entry.path / LEFT_OUT_FILE
    if not file.is_file():
        return {"listed": False, "counts": {}, "total": 0, "rows": []}
    lines = [_parse_row(line) for _, line in numbered_lines(file)]
    counts = Counter(str(fields.get("reason")) for fields in lines)
    chosen = [fields for fields in lines if not reason or fields.get("reason") == reason]
    rows = [
        {**fields, "run": keys.get(Path(str(fields.get("file"))).resolve())}
        for fields in islice(chosen, offset, offset + limit)
    ]
    return {"listed": True, "counts": counts, "total": len(chosen), "rows": rows}


def _parse_row(line: bytes) -> JsonObject:
    try:
        fields = from_json(line)
    except ValueError:
        return {}
    return fields if isinstance(fields, dict) else {}


def _row_facts(number: int, row: JsonObject) -> JsonObject:
    facts: JsonObject = {name: row[name] for name in _FACTS if row.get(name) is not None}
    messages = row.get("messages") or row.get("prompt") or ()
    return {"number": number, **facts, "question": _excerpt(messages)}


def _excerpt(messages: Any) -> str:
    try:
        return prompt_text(messages)[:_EXCERPT_CHARS]
    except (KeyError, TypeError, AttributeError):
        return ""
