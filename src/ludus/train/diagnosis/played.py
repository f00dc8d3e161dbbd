"""What the episodes of a run came to, group by group: as much of `episodes.jsonl` as is needed.

A line's tokens and messages are most of it and are never parsed: what is wanted stands before.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from math import isfinite
from pathlib import Path
from typing import Any, NamedTuple

from pydantic_core import from_json

from ludus.data.episode import StopReason
from ludus.data.lines import numbered
from ludus.train.grpo.groups import is_equal

_REST = b',"messages":['
_FAULTS = frozenset(reason.value for reason in StopReason if reason.is_fault)


class Attempt(NamedTuple):
    """What is wanted of one episode."""

    name: str
    step: int
    """The training step that it was played for."""
    environment: str
    task: str
    """The id of its group."""
    stop_reason: str
    reward: float | None


@dataclass(frozen=True, slots=True)
class Group:
    """The scored attempts at one task in one step."""

    step: int
    environment: str
    task: str
    rewards: tuple[float, ...]

    @property
    def equal(self) -> bool:
        """Whether there is nothing to tell its members apart."""
        return is_equal(self.rewards)


@dataclass(frozen=True, slots=True)
class Played:
    """All of a run's episodes."""

    groups: tuple[Group, ...] = ()
    stops: Mapping[str, int] = field(default_factory=dict)
    """How many episodes ended for which reason."""
    broken: str | None = None
    """The id of the last episode that a fault ended."""
    unreadable: int = 0
    """Lines that are no episode."""

    @property
    def environments(self) -> tuple[str, ...]:
        return tuple(sorted({group.environment for group in self.groups}))

    def between(self, first: int, last: int, environment: str | None = None) -> list[Group]:
        """The groups of these steps, of all environments or of one."""
        return [
            group
            for group in self.groups
            if first <= group.step <= last and environment in (None, group.environment)
        ]


def equal_share(groups: Collection[Group]) -> float | None:
    """How many of the groups have nothing to learn from."""
    return sum(group.equal for group in groups) / len(groups) if groups else None


def played(attempts: Iterable[Attempt], *, unreadable: int = 0) -> Played:
    """Put attempts into their groups.

    A run that went on from a checkpoint plays some steps again: an episode that is there twice
    counts once, as it went the last time.
    """
    latest = {(attempt.step, attempt.name): attempt for attempt in attempts}
    rewards: defaultdict[tuple[int, str, str], list[float]] = defaultdict(list)
    for one in latest.values():
        if one.reward is not None and one.stop_reason not in _FAULTS:
            rewards[one.step, one.environment, one.task].append(one.reward)
    broken = [one.name for one in latest.values() if one.stop_reason in _FAULTS]
    return Played(
        tuple(Group(*key, tuple(found)) for key, found in rewards.items()),
        Counter(one.stop_reason for one in latest.values()),
        broken[-1] if broken else None,
        unreadable,
    )


def read_played(file: Path) -> Played:
    """What an `episodes.jsonl` holds; nothing where there is none yet."""
    if not file.exists():
        return Played()
    found, unreadable = list[Attempt](), 0
    for _, line in numbered(file):
        attempt = attempt_of(line)
        if attempt is None:
            unreadable += 1
        else:
            found.append(attempt)
    return played(found, unreadable=unreadable)


def attempt_of(line: bytes) -> Attempt | None:
    """What is wanted of a line; None where it is torn, or no episode of a training step."""
    fields = _fields(line)
    try:
        step, reward = fields["agent"]["step"], fields["reward"]
        words = [fields[key] for key in ("episode_id", "environment", "group_id", "stop_reason")]
    except (KeyError, TypeError):
        return None
    if not isinstance(step, int) or not all(isinstance(word, str) for word in words):
        return None
    name, environment, task, reason = words
    return Attempt(name, step, environment, task, reason, _number(reward))


def _fields(line: bytes) -> dict[str, Any]:
    """What stands before the messages, or all of the line where that is not JSON by itself."""
    cut = line.find(_REST) if line.endswith(b"}\n") else -1
    for text in (line[:cut] + b"}", line) if cut > 0 else (line,):
        try:
            found = from_json(text)
        except ValueError:
            continue
        return found if isinstance(found, dict) else {}
    return {}


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and isfinite(value) else None
