"""Rows of training data as they stand in JSONL: conversations, and pairs of them.

Rows are taken as they are written, also by others: what is trained is the row itself, so nothing is
tidied on the way. Whether a row is any good is the checks' business.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic_core import from_json

from ludus.data.episode_reader import numbered_lines
from ludus.data.tool_schema import JsonObject
from ludus.errors import RunError

DATASET_FILES = ("train.jsonl", "test.jsonl")
"""What `ludus curate` writes into its folder."""

_PAIR_COLUMNS = ("prompt", "chosen", "rejected")
_PROMPT_COMPLETION_COLUMNS = ("prompt", "completion")


class MalformedRowError(ValueError):
    """A row whose columns are right and whose content is not."""


@dataclass(frozen=True, slots=True)
class SourceLocation:
    """A line of a file."""

    path: Path
    line: int

    def __str__(self) -> str:
        return f"{self.path}:{self.line}"


@dataclass(frozen=True, slots=True)
class Conversation:
    """One conversation that is trained on."""

    name: Literal["", "chosen", "rejected"]
    """Empty in rows that are no pairs."""
    messages: list[JsonObject]
    prompt_length: int
    """Where the prompt ends that is given apart; 0 where the row is one conversation."""


@dataclass(frozen=True, slots=True)
class TrainingRow:
    """One line of training data."""

    conversations: tuple[Conversation, ...]
    tools: list[JsonObject] | None

    @property
    def is_pair(self) -> bool:
        return len(self.conversations) > 1


def find_data_files(data: Path) -> list[Path]:
    """The files that are meant by a folder or a file."""
    found = [data / name for name in DATASET_FILES if (data / name).is_file()]
    if not found and (other := _detect_other_format(data)):
        raise RunError(
            f"{data} is {other}, and lint reads JSONL. `ludus curate --format jsonl` writes it."
        )
    if not data.is_dir():
        return [data]
    if not found:
        raise RunError(
            f"{data} holds neither {' nor '.join(DATASET_FILES)}. `ludus curate` makes them; or name a "
            "JSONL file."
        )
    return found


def read_json_lines(path: Path) -> Iterator[tuple[SourceLocation, JsonObject]]:
    """Every line that is not empty, as a JSON object."""
    for number, line in numbered_lines(path):
        place = SourceLocation(path, number)
        try:
            value = from_json(line)
        except ValueError as error:
            raise RunError(f"{place} is not JSON: {error}. Each line must be one object.") from None
        if not isinstance(value, dict):
            raise RunError(f"{place} is not a JSON object. Each line must be one.")
        yield place, value


def parse_row(columns: JsonObject, location: SourceLocation) -> TrainingRow:
    """A line as a row; `Malformed` says what in it is not as it must be."""
    tools = _parse_tools(columns.get("tools"))
    if "messages" in columns:
        return TrainingRow(
            (Conversation("", _check_messages(columns["messages"], "messages"), 0),), tools
        )
    if all(name in columns for name in _PROMPT_COMPLETION_COLUMNS):
        prompt, completion = (
            _check_messages(columns[name], name) for name in _PROMPT_COMPLETION_COLUMNS
        )
        return TrainingRow((Conversation("", [*prompt, *completion], len(prompt)),), tools)
    if not all(name in columns for name in _PAIR_COLUMNS):
        raise RunError(
            f"{location} has neither `messages` nor `prompt` with `completion` or with `chosen` and "
            "`rejected`, so it is no row to train on. `ludus curate` makes such rows."
        )
    prompt, chosen, rejected = (_check_messages(columns[name], name) for name in _PAIR_COLUMNS)
    return TrainingRow(
        (
            Conversation("chosen", [*prompt, *chosen], len(prompt)),
            Conversation("rejected", [*prompt, *rejected], len(prompt)),
        ),
        tools,
    )


def message_text(message: JsonObject) -> str:
    """The words of a message, whichever form its content has."""
    content = message.get("content")
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else []
    words = (part.get("text") for part in parts if isinstance(part, dict))
    return "\n".join(word for word in words if isinstance(word, str))


def _detect_other_format(data: Path) -> str:
    """What `ludus curate` wrote there if it is no JSONL; empty where that is not known."""
    if data.suffix == ".parquet" or any(data.glob("*.parquet")):
        return "Parquet"
    saved = ("dataset_dict.json", "dataset_info.json")
    return "a folder of datasets" if any((data / name).is_file() for name in saved) else ""


def _check_messages(value: Any, name: str) -> list[JsonObject]:
    if not isinstance(value, list):
        raise MalformedRowError(f"`{name}` is not a list of messages")
    for at, message in enumerate(value):
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            raise MalformedRowError(f"`{name}[{at}]` is no message with a role")
        calls = message.get("tool_calls")
        if calls is not None and not (isinstance(calls, list) and all(map(_is_call, calls))):
            raise MalformedRowError(f"`{name}[{at}].tool_calls` is not a list of calls with names")
    return value


def _is_call(call: Any) -> bool:
    function = call.get("function", call) if isinstance(call, dict) else None
    return isinstance(function, dict) and isinstance(function.get("name"), str)


def _parse_tools(value: Any) -> list[JsonObject] | None:
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            raise MalformedRowError("`tools` is a string that is not JSON") from None
    if value is None:
        return None
    if not isinstance(value, list) or not all(map(_is_call, value)):
        raise MalformedRowError("`tools` is not a list of tools with names")
    return value
