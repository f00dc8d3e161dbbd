"""The base of all importers: parse a file of another tool into episodes.

An importer never raises an error for the content of a file and never skips anything silently: what
cannot be parsed is yielded as `UnreadableRecord`, in its place. Episodes may have an empty
`episode_id`; `run_import` assigns one.

Fields that a format has no place for are stored by exporters under `EXTRA_KEY`, so that importing
the file restores the episode. Messages, tools and reward are always read from the format itself, so
that edits to the file take effect.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from math import isfinite
from pathlib import Path
from typing import Any, Protocol, Self

from pydantic import ValidationError
from pydantic_core import from_json

from ludus.data.episode import Episode, Fault, StopReason, Timing, Usage, task_group_id
from ludus.data.json_files import numbered_lines
from ludus.data.messages import Message, messages_before_reply
from ludus.data.tool_schema import JsonObject, parse_arguments

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


def build_episode(
    *,
    environment: str,
    messages: tuple[Message, ...],
    tools: tuple[JsonObject, ...] = (),
    reward: float | None,
    task: JsonObject | None = None,
    group: Any = None,
    group_id: str | None = None,
    episode_id: str = "",
    seed: int | None = None,
    agent: JsonObject | None = None,
    rewards: dict[str, float] | None = None,
    done: bool = True,
    stop_reason: StopReason | None = None,
    error: Fault | None = None,
    usage: Usage | None = None,
    timing: Timing | None = None,
) -> Episode:
    """Build an episode.

    `group_id` is taken as it is. Without it, attempts with the same `group`, else the same `task`,
    else the same prompt form a group. An attempt with an `error` is broken, and therefore unscored.
    """
    broken = error is not None
    default_stop_reason = StopReason.DONE if done else StopReason.NO_TOOL_CALL
    identity = group if group is not None else task or prompt_group_key(messages)
    calls = [call for message in messages for call in message.tool_calls or ()]
    return Episode(
        episode_id=episode_id,
        stop_reason=StopReason.BROKEN if broken else stop_reason or default_stop_reason,
        reward=None if broken else reward,
        usage=usage or Usage(),
        environment=environment,
        task=task or {},
        seed=seed,
        group_id=group_id or task_group_id(environment, {"task": identity}),
        agent=agent or {},
        messages=messages,
        tools=tools,
        rewards=rewards or {},
        done=done and not broken,
        turns=sum(message.role == "assistant" for message in messages),
        tool_calls=len(calls),
        malformed_calls=sum(parse_arguments(call.function.arguments) is None for call in calls),
        error=error,
        timing=timing,
    )


def build_fault(kind: Any, message: Any, *, by_model: bool) -> Fault:
    """Build the fault of an episode: an error of the model's provider, or of the environment."""
    text = message if isinstance(message, str) else json.dumps(message, ensure_ascii=False)
    return Fault(kind=str(kind), where="model" if by_model else "environment", message=text)


def build_timing(
    start: Any, end: Any, *, model: Any = None, environment: Any = None
) -> Timing | None:
    """Build the timing of an episode from Unix times; None if they are unknown."""
    start_s, end_s = as_number(start), as_number(end)
    if start_s is None or end_s is None:
        return None
    try:
        started_at = datetime.fromtimestamp(start_s, UTC)
        ended_at = datetime.fromtimestamp(end_s, UTC)
    except (OverflowError, OSError, ValueError):
        return None
    return Timing(
        started_at=started_at,
        ended_at=ended_at,
        model_s=as_number(model) or 0.0,
        environment_s=as_number(environment) or 0.0,
    )


def prompt_group_key(messages: tuple[Message, ...]) -> list[JsonObject]:
    """Return the messages before the first reply as JSON: episodes that share them are a group."""
    return [message.model_dump(mode="json") for message in messages_before_reply(messages)]


EXTRA_KEY = "ludus"
# Part of every format, or computed from its messages.
_NATIVE_FIELDS = frozenset({"version", "messages", "tools", "reward", "turns", "tool_calls"})


def extra_fields(episode: Episode, *, known: Collection[str]) -> JsonObject:
    """Return the fields of an episode that the format does not store; `known` are those it does."""
    return {
        name: value
        for name, value in episode.model_dump(mode="json").items()
        if name not in _NATIVE_FIELDS and name not in known
    }


def restore_fields(episode: Episode, fields: Any) -> Episode:
    """Restore the result of `extra_fields`, if there is any."""
    if fields is None:
        return episode
    extra = {
        name: value
        for name, value in require_object(fields, EXTRA_KEY).items()
        if name not in _NATIVE_FIELDS
    }
    restored = Episode.model_validate({**dict(episode), **extra})
    return restored.model_copy(update={"reward": None}) if restored.broken else restored
