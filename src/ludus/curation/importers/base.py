"""What every importer is: a file in somebody's format -> episodes, and what could not be read.

An importer never raises over a file's content and never passes anything over in silence: a line
that is no episode comes out as `Unreadable`, in its place. An `episode_id` may be empty: then the
run folder gives it one. Writing that folder is `ludus.curation.importers.run_import`'s business.
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
from ludus.data.episode_reader import numbered_lines
from ludus.data.tool_schema import JsonObject


@dataclass(frozen=True, slots=True)
class UnreadableRecord:
    """A place in a file that holds no episode, and why."""

    path: Path
    line: int | None
    """From 1; None where the whole file cannot be read."""
    reason: str

    def __str__(self) -> str:
        where = f"{self.path}:{self.line}" if self.line is not None else str(self.path)
        return f"{where}: {self.reason}"


class FormatError(ValueError):
    """This line is JSON, and not what the format says."""


def read_jsonl(
    path: Path, parse_line: Callable[[JsonObject], Iterator[Episode]]
) -> Iterator[Episode | UnreadableRecord]:
    """Every line of a JSONL file through `episodes_of`, which raises `Malformed` where it must.

    All of a line is read before any of it is passed on: half a line is not a result.
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


def parse_number(value: Any, name: str) -> float | None:
    """A score as files have it; None: unscored, as is NaN. A truth value is 0 or 1."""
    if value is None:
        return None
    if not isinstance(value, int | float):
        raise FormatError(f"{name} is {_json_type(value)}, not a number")
    try:
        return float(value) if isfinite(value) else None
    except OverflowError:
        raise FormatError(f"{name} is a number of more digits than fit") from None


def parse_name(value: Any, name: str) -> str | None:
    """A name as files have it: many count from 0. None: there is none, as where it is empty."""
    if value is None or value == "":
        return None
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise FormatError(f"{name} is {_json_type(value)}, not a name")
    return str(value)


def parse_embedded_json(text: str, name: str) -> Any:
    """JSON that was written into a string of JSON."""
    try:
        return from_json(text)
    except ValueError:
        raise FormatError(f"{name} is a string that is not JSON") from None


def first_error(error: ValidationError) -> str:
    first = error.errors(include_url=False)[0]
    where = ".".join(map(str, first["loc"]))
    return f"{where}: {first['msg']}" if where else str(first["msg"])


def _json_type(value: Any) -> str:
    names = {str: "a string", bool: "true or false", int: "a number", float: "a number"}
    named = {list: "a list", dict: "an object", type(None): "null"} | names
    return named.get(type(value), type(value).__name__)
