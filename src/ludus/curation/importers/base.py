"""The base of all importers: parse a file of another tool into episodes.

An importer never raises an error for the content of a file and never skips anything silently: what
cannot be parsed is yielded as `UnreadableRecord`, in its place. Episodes may have an empty
`episode_id`; `run_import` assigns one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from pydantic_core import from_json

from ludus.data.episode import Episode
from ludus.data.jsonl import numbered_lines
from ludus.data.tool_schema import JsonObject

_JSON_TYPES = {
    str: "a string",
    bool: "a boolean",
    int: "a number",
    float: "a number",
    list: "a list",
    dict: "an object",
    type(None): "null",
}


@dataclass(frozen=True, slots=True)
class UnreadableRecord:
    """A line or file without an episode, and the reason."""

    path: Path
    line: int | None
    """From 1; None if the whole file cannot be read."""
    reason: str

    def __str__(self) -> str:
        location = f"{self.path}:{self.line}" if self.line is not None else str(self.path)
        return f"{location}: {self.reason}"


class FormatError(ValueError):
    """A record that is JSON, but does not follow its format."""


def read_jsonl(
    path: Path, parse_line: Callable[[JsonObject], Iterator[Episode]]
) -> Iterator[Episode | UnreadableRecord]:
    """Parse every line of a JSONL file with `parse_line`, which may raise `FormatError`.

    A line yields all of its episodes or none.
    """
    for number, line in numbered_lines(path):
        try:
            yield from list(parse_line(require_object(from_json(line))))
        except ValidationError as error:
            yield UnreadableRecord(path, number, first_error(error))
        except FormatError as error:
            yield UnreadableRecord(path, number, str(error))
        except ValueError as error:
            yield UnreadableRecord(path, number, f"not JSON: {error}")


def require_object(value: Any, name: str = "the line") -> JsonObject:
    if not isinstance(value, dict):
        raise FormatError(f"{name} is {_json_type(value)}, not a JSON object")
    return value


def as_object(value: Any) -> JsonObject:
    """Return an object; empty if the value is missing or of another type."""
    return value if isinstance(value, dict) else {}


def parse_number(value: Any, name: str) -> float | None:
    """Parse a score. Null and NaN mean unscored; booleans are 0 or 1."""
    if value is None:
        return None
    if not isinstance(value, int | float):
        raise FormatError(f"{name} is {_json_type(value)}, not a number")
    try:
        return float(value) if isfinite(value) else None
    except OverflowError:
        raise FormatError(f"{name} is too large a number") from None


def parse_name(value: Any, name: str) -> str | None:
    """Parse an id or name, which may be a number; None if it is missing or empty."""
    if value is None or value == "":
        return None
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise FormatError(f"{name} is {_json_type(value)}, not a name")
    return str(value)


def parse_embedded_json(text: str, name: str) -> Any:
    """Parse JSON inside a JSON string."""
    try:
        return from_json(text)
    except ValueError:
        raise FormatError(f"{name} is a string that is not JSON") from None


def first_error(error: ValidationError) -> str:
    first = error.errors(include_url=False)[0]
    field = ".".join(map(str, first["loc"]))
    return f"{field}: {first['msg']}" if field else str(first["msg"])


def _json_type(value: Any) -> str:
    return _JSON_TYPES.get(type(value), type(value).__name__)
