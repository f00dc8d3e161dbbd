"""Read JSONL training data as rows and conversations.

Rows may come from other tools. They are taken exactly as written, because the row itself is what
gets trained on; this module only rejects what no trainer could read.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic_core import from_json, to_json

from ludus.data.checksum import stable_hash
from ludus.data.jsonl import numbered_lines
from ludus.data.tool_schema import JsonObject
from ludus.errors import RunError

DATASET_FILES = ("train.jsonl", "test.jsonl")
"""The files that `ludus curate` writes."""

_PAIR_COLUMNS = ("prompt", "chosen", "rejected")
_PROMPT_COMPLETION_COLUMNS = ("prompt", "completion")
_TRAINED_COLUMNS = ("messages", "prompt", "completion", "chosen", "rejected", "tools")


class MalformedRowError(ValueError):
    """A row that has the right columns with the wrong content."""


@dataclass(frozen=True, slots=True)
class SourceLocation:
    """A line of a file, counted from 1."""

    path: Path
    line: int

    def __str__(self) -> str:
        return f"{self.path}:{self.line}"


@dataclass(frozen=True, slots=True)
class Conversation:
    """A conversation to train on: the whole row, or one side of a preference pair."""

    name: Literal["", "chosen", "rejected"]
    """Empty if the row is not a pair."""
    messages: list[JsonObject]
    prompt_length: int
    """Number of messages from the `prompt` column; 0 if the row has only `messages`."""

    @property
    def completion(self) -> list[JsonObject]:
        """The messages after the prompt."""
        return self.messages[self.prompt_length :]

    @property
    def replies(self) -> list[JsonObject]:
        """The assistant messages after the prompt that bear loss."""
        messages = (message for message in self.completion if message["role"] == "assistant")
        return [message for message in messages if message.get("weight") != 0]


@dataclass(frozen=True, slots=True)
class LintRow:
    """One line of training data, as lint reads it."""

    conversations: tuple[Conversation, ...]
    """One, or the chosen and the rejected side of a pair."""
    tools: list[JsonObject] | None

    @property
    def is_pair(self) -> bool:
        return len(self.conversations) > 1


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


def parse_lint_row(columns: JsonObject, location: SourceLocation) -> LintRow:
    """Parse a row. Raises `MalformedRowError` if the content of a column is wrong."""
    tools = columns.get("tools")
    if isinstance(tools, str):
        try:
            tools = json.loads(tools)
        except ValueError:
            raise MalformedRowError("`tools` is a string that is not JSON") from None
    if tools is not None and not (isinstance(tools, list) and all(map(_has_name, tools))):
        raise MalformedRowError("`tools` is not a list of named tools")
    if "messages" in columns:
        messages = _check_row_messages(columns["messages"], "messages")
        return LintRow((Conversation("", messages, 0),), tools)
    if all(name in columns for name in _PROMPT_COMPLETION_COLUMNS):
        prompt, completion = (
            _check_row_messages(columns[name], name) for name in _PROMPT_COMPLETION_COLUMNS
        )
        return LintRow((Conversation("", [*prompt, *completion], len(prompt)),), tools)
    if not all(name in columns for name in _PAIR_COLUMNS):
        raise RunError(
            f"{location} has neither `messages` nor `prompt` with `completion` or with `chosen` "
            "and `rejected`, so it cannot be trained on. `ludus curate` writes such rows."
        )
    prompt, chosen, rejected = (_check_row_messages(columns[name], name) for name in _PAIR_COLUMNS)
    return LintRow(
        (
            Conversation("chosen", [*prompt, *chosen], len(prompt)),
            Conversation("rejected", [*prompt, *rejected], len(prompt)),
        ),
        tools,
    )


def _check_row_messages(value: Any, name: str) -> list[JsonObject]:
    """Return the messages of a column; raise `MalformedRowError` if they are not messages."""
    if not isinstance(value, list):
        raise MalformedRowError(f"`{name}` is not a list of messages")
    for at, message in enumerate(value):
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            raise MalformedRowError(f"`{name}[{at}]` is not a message with a role")
        calls = message.get("tool_calls")
        if calls is not None and not (isinstance(calls, list) and all(map(_has_name, calls))):
            raise MalformedRowError(f"`{name}[{at}].tool_calls` is not a list of named calls")
    return value


def _has_name(value: Any) -> bool:
    """Whether a tool or a tool call has a name."""
    function = value.get("function", value) if isinstance(value, dict) else None
    return isinstance(function, dict) and isinstance(function.get("name"), str)
