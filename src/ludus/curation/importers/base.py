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
from typing import Any, Protocol, Self

from pydantic import ValidationError
from pydantic_core import from_json

from ludus.data.episode import Episode
from ludus.data.jsonl import numbered_lines
from ludus.data.tool_schema import JsonObject

_LFS_POINTER = b"version https://git-lfs"
_HEAD_BYTES = 200
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

    @classmethod
    def from_error(
        cls, path: Path, line: int | None, error: ValueError, *, record: str | None = None
    ) -> Self:
        """Describe why a record could not be parsed; `record` names it if it is not a line."""
        reason = str(error) if isinstance(error, FormatError) else f"not JSON: {error}"
        if isinstance(error, ValidationError):
            first = error.errors(include_url=False)[0]
            field = ".".join(map(str, first["loc"]))
            reason = f"{field}: {first['msg']}" if field else str(first["msg"])
        return cls(path, line, f"{record}: {reason}" if record else reason)


class FormatError(ValueError):
    """A record that is JSON, but does not follow its format."""

    @classmethod
    def wrong_type(cls, name: str, value: Any, expected: str) -> Self:
        """Build the error for a value of the wrong type; `name` says where the value is."""
        found = _JSON_TYPES.get(type(value), type(value).__name__)
        return cls(f"{name} is {found}, not {expected}")


class Importer(Protocol):
    """Reads the files of one tool. There is a class for each format."""

    def find_files(self, path: Path) -> list[Path]:
        """List the files to read for a file or folder."""

    def unread_files(self, path: Path) -> list[Path]:
        """List the files of a folder that are not read."""

    def read_episodes(self, path: Path) -> Iterator[Episode | UnreadableRecord]:
        """Yield the episodes of one of the files, and what cannot be read, in their order."""


def list_files(folder: Path) -> list[Path]:
    """List the files of a folder that is imported, without those in subfolders."""
    return sorted(file for file in folder.iterdir() if file.is_file())


def read_jsonl(
    path: Path, parse_line: Callable[[JsonObject], Iterator[Episode]]
) -> Iterator[Episode | UnreadableRecord]:
    """Parse every line of a JSONL file with `parse_line`, which may raise `FormatError`.

    A line yields all of its episodes or none.
    """
    for number, line in numbered_lines(path):
        if number == 1 and (reason := describe_placeholder(line)) is not None:
            yield UnreadableRecord(path, None, reason)
            return
        try:
            yield from list(parse_line(require_object(from_json(line))))
        except ValueError as error:
            yield UnreadableRecord.from_error(path, number, error)


def describe_placeholder(content: bytes) -> str | None:
    """What stands in the place of a file's content, by its beginning; None for content."""
    if content.startswith(_LFS_POINTER):
        return "a pointer of Git LFS in place of the file: fetch it with `git lfs pull`"
    head = content[:_HEAD_BYTES].decode("utf-8", "replace").strip()
    if head[:1] not in ("{", "[") and "placeholder" in head.lower():
        return f"a placeholder without any content: {head.splitlines()[0][:80]!r}"
    return None


def require_object(value: Any, name: str = "the line") -> JsonObject:
    if not isinstance(value, dict):
        raise FormatError.wrong_type(name, value, "a JSON object")
    return value


def as_object(value: Any) -> JsonObject:
    """Return an object; empty if the value is missing or of another type."""
    return value if isinstance(value, dict) else {}


def as_number(value: Any) -> float | None:
    """Return a finite number; None if the value is missing or of another type."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        return None
    try:
        return float(value) if isfinite(value) else None
    except OverflowError:
        return None


def as_numbers(values: JsonObject) -> dict[str, float]:
    """Return the finite numbers of an object: metrics may also be null or text."""
    numbers = {name: as_number(value) for name, value in values.items()}
    return {name: number for name, number in numbers.items() if number is not None}


def as_count(counts: JsonObject, *names: str) -> int:
    """Return the first of the named counts that is a number other than 0; else 0."""
    return int(next((count for name in names if (count := as_number(counts.get(name)))), 0))


def parse_number(value: Any, name: str) -> float | None:
    """Parse a score. Null and NaN mean unscored; booleans are 0 or 1."""
    if value is None:
        return None
    if not isinstance(value, int | float):
        raise FormatError.wrong_type(name, value, "a number")
    try:
        return float(value) if isfinite(value) else None
    except OverflowError:
        raise FormatError(f"{name} is too large a number") from None


def parse_name(value: Any, name: str) -> str | None:
    """Parse an id or name, which may be a number; None if it is missing or empty."""
    if value is None or value == "":
        return None
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise FormatError.wrong_type(name, value, "a name")
    return str(value)


def parse_embedded_json(text: str, name: str) -> Any:
    """Parse JSON inside a JSON string."""
    try:
        return from_json(text)
    except ValueError:
        raise FormatError(f"{name} is a string that is not JSON") from None
