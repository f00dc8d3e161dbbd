"""What training changed: the reward at the beginning and at the end, and how sure that is.

Pure. The interval is a bootstrap over tasks: the members of a group play the same one, so they
are no independent evidence.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ludus.train.diagnosis.course import Course, Line, column, mean, step_of
from ludus.train.diagnosis.played import Group, Played

_TAIL = 0.025
_DRAWS = 1_000_000
"""Tasks that a bootstrap may draw in all: about a second's work."""
_MOST, _LEAST = 1_000, 200
"""Rounds."""
_FEWEST = 5
"""Tasks at either end below which a bootstrap would seem far surer than it is."""


class Interval(NamedTuple):
    """Between them lies the true value, 95 times of 100."""

    low: float
    high: float


class _Sum(NamedTuple):
    total: float
    members: int


@dataclass(frozen=True, slots=True)
class Scale:
    """From the worst reward to the best."""

    low: float
    high: float

    @classmethod
    def of(cls, rewards: Iterable[float]) -> Scale:
        """0 to 1 where all rewards lie there; else what was seen, because no more is known."""
        found = list(rewards)
        low, high = min(found, default=0.0), max(found, default=1.0)
        return cls(0.0, 1.0) if low >= 0.0 and high <= 1.0 else cls(low, high)

    @property
    def unit(self) -> bool:
        return (self.low, self.high) == (0.0, 1.0)

    def place(self, reward: float) -> float:
        """Where a reward lies: 0 at the worst, 1 at the best."""
        return self.part(reward - self.low)

    def part(self, difference: float) -> float:
        """A difference of rewards, as a part of the whole scale."""
        width = self.high - self.low
        return difference / width if width else 0.0


@dataclass(frozen=True, slots=True)
class Change:
    """A reward, before and after."""

    name: str
    initial: float
    final: float
    scale: Scale
    interval: Interval | None = None
    """Of the delta; None where the episodes are not there, or too few."""

    @property
    def delta(self) -> float:
        return self.final - self.initial

    @property
    def place(self) -> float:
        """Where it began: 0 at the worst, 1 at the best."""
        return self.scale.place(self.initial)

    @property
    def part(self) -> float:
        """The delta, as a part of the scale."""
        return self.scale.part(self.delta)


def change_of(course: Course, played: Played, environment: str | None = None) -> Change | None:
    """The whole reward's change, or that in one environment. None: it was not played at an end.

    From the episodes where they are there. Only the log knows what stands in no episode, but it
    cannot tell how sure it is.
    """
    name = environment or "reward"
    first, last = ends(course, played, environment)
    if first and last:
        scale = Scale.of(reward for group in played.groups for reward in group.rewards)
        one, other = _sums(first), _sums(last)
        return Change(name, _mean(one), _mean(other), scale, difference(one, other))
    key = f"rewards/{environment}/mean" if environment else "reward"
    return logged_change(course, name, key)


def ends(
    course: Course, played: Played, environment: str | None = None
) -> tuple[list[Group], list[Group]]:
    """The groups of the run's beginning and of its end."""
    opening = step_of(course.beginning[-1])
    closing = step_of(course.lines[-course.edge - 1]) + 1 if len(course.lines) > 1 else 0
    return (
        played.between(1, opening, environment),
        played.between(closing, course.steps, environment),
    )


def logged_change(course: Course, name: str, key: str) -> Change | None:
    """What the log alone tells of a figure."""
    initial, final = mean(course.beginning, key), mean(course.end, key)
    if initial is None or final is None:
        return None
    return Change(name, initial, final, Scale.of(column(course.lines, key)))


def parts_of(course: Course, played: Played) -> tuple[Change, ...]:
    """The environments of a mix, and the reward functions where there are several."""
    environments = played.environments
    names = _names(course.lines)
    shown = environments if len(environments) > 1 else ()
    found = [change_of(course, played, environment) for environment in shown]
    others = [name for name in names if name not in environments]
    if environments or len(others) > 1:
        found += [logged_change(course, name, f"rewards/{name}/mean") for name in others]
    return tuple(change for change in found if change is not None)


def _names(lines: Iterable[Line]) -> list[str]:
    keys = {key for line in lines for key in line if key.startswith("rewards/")}
    return sorted(
        key.removeprefix("rewards/").removesuffix("/mean") for key in keys if key.endswith("/mean")
    )


def difference(before: Sequence[_Sum], after: Sequence[_Sum], *, seed: int = 0) -> Interval | None:
    """The 95 % interval of one mean less another; the same sums give the same."""
    if min(len(before), len(after)) < _FEWEST:
        return None
    chance = random.Random(seed)
    rounds = max(_LEAST, min(_MOST, _DRAWS // (len(before) + len(after))))
    drawn = sorted(_redrawn(after, chance) - _redrawn(before, chance) for _ in range(rounds))
    found, cut = _mean(after) - _mean(before), round(_TAIL * rounds)
    return Interval(min(found, drawn[cut]), max(found, drawn[rounds - 1 - cut]))


def _redrawn(sums: Sequence[_Sum], chance: random.Random) -> float:
    return _mean(chance.choices(sums, k=len(sums)))


def _mean(sums: Sequence[_Sum]) -> float:
    return sum(one.total for one in sums) / sum(one.members for one in sums)


def _sums(groups: Iterable[Group]) -> list[_Sum]:
    """One for each task, however often it came up: it is as hard every time."""
    rewards: defaultdict[tuple[str, str], list[float]] = defaultdict(list)
    for group in groups:
        rewards[group.environment, group.task].extend(group.rewards)
    return [_Sum(sum(found), len(found)) for found in rewards.values()]
