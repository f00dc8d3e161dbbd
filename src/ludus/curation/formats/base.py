"""What the formats of other tools share: parse lines into episodes, and restore exported ones.

A reader yields the episodes of a file. It never raises an error for the content and never skips
anything silently: what cannot be parsed is yielded as `UnreadableRecord`, in its place. Episodes
may have an empty `episode_id`; `import_files` assigns one.

Fields that a format has no place for are written under `EXTRA_KEY`, so that importing the file
restores the episode. Messages, tools and reward are always read from the format itself, so that
edits to the file take effect.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from math import isfinite
from pathlib import Path

from pydantic import ValidationError
from pydantic_core import from_json

from ludus.data.episode import Episode, EpisodeFault, StopReason, Usage, task_group_id
from ludus.data.json_files import numbered_lines
from ludus.data.messages import Message, messages_before_reply
from ludus.data.tool_schema import JsonObject, parse_arguments


@dataclass(frozen=True, slots=True)
class UnreadableRecord:
    """A line or file without an episode, and the reason."""

    path: Path
    line: int | None
    """From 1; None for the whole file."""
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
            first = error.errors(include_url=False)[0]
            field = ".".join(map(str, first["loc"]))
            reason = f"{field}: {first['msg']}" if field else str(first["msg"])
            yield UnreadableRecord(path, number, reason)
        except (FormatError, OverflowError, TypeError) as error:
            yield UnreadableRecord(path, number, str(error))
        except ValueError as error:
            yield UnreadableRecord(path, number, f"not JSON: {error}")


def require_object(value: object, name: str = "the line") -> JsonObject:
    if not isinstance(value, dict):
        raise FormatError(f"{name} is not a JSON object")
    return value


def as_object(value: object) -> JsonObject:
    """Return an object; empty if the value is missing or of another type."""
    return value if isinstance(value, dict) else {}


def parse_score(value: object, name: str) -> float | None:
    """Parse a score. Null and NaN mean unscored; booleans are 0 or 1."""
    if value is None:
        return None
    if not isinstance(value, int | float):
        raise FormatError(f"{name} is not a number")
    try:
        return float(value) if isfinite(value) else None
    except OverflowError:
        raise FormatError(f"{name} is too large a number") from None


def build_episode(
    *,
    environment: str,
    messages: tuple[Message, ...],
    tools: tuple[JsonObject, ...] = (),
    reward: float | None,
    task: JsonObject | None = None,
    group: object = None,
    group_id: str | None = None,
    episode_id: str = "",
    seed: int | None = None,
    agent: JsonObject | None = None,
    rewards: dict[str, float] | None = None,
    done: bool = True,
    stop_reason: StopReason | None = None,
    error: EpisodeFault | None = None,
    usage: Usage | None = None,
) -> Episode:
    """Build an episode from the fields of another tool's format.

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
    )


def build_fault(kind: object, message: object, *, by_model: bool) -> EpisodeFault:
    """Build the fault of an imported episode: an error of the model or of the environment."""
    text = message if isinstance(message, str) else json.dumps(message, ensure_ascii=False)
    return EpisodeFault(kind=str(kind), where="model" if by_model else "environment", message=text)


def prompt_group_key(messages: tuple[Message, ...]) -> list[JsonObject]:
    """Return the messages before the first reply as JSON: episodes that share them are a group."""
    return [message.model_dump(mode="json") for message in messages_before_reply(messages)]


EXTRA_KEY = "ludus"
# Part of every format, or computed from its messages.
_NATIVE_FIELDS = frozenset({"version", "messages", "tools", "reward", "turns", "tool_calls"})


def extra_fields(episode: Episode, *, stored: Collection[str]) -> JsonObject:
    """Return the fields of an episode that the format does not have; it has `stored`."""
    return {
        name: value
        for name, value in episode.model_dump(mode="json").items()
        if name not in _NATIVE_FIELDS and name not in stored
    }


def restore_fields(episode: Episode, fields: object) -> Episode:
    """Restore the fields that `extra_fields` wrote to an exported line, if there are any."""
    if fields is None:
        return episode
    extra = {
        name: value
        for name, value in require_object(fields, EXTRA_KEY).items()
        if name not in _NATIVE_FIELDS
    }
    restored = Episode.model_validate({**dict(episode), **extra})
    return restored.model_copy(update={"reward": None}) if restored.broken else restored
