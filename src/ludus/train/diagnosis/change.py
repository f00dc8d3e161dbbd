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

from ludus.data.bootstrap import MIN_SAMPLES, tail_fraction
from ludus.train.diagnosis.course import Course, Line, column, figure, mean, step_of
from ludus.train.diagnosis.played import Group, Played

_DRAWS = 1_000_000
"""Tasks that a bootstrap may draw in all: about a second's work."""
_MOST, _LEAST = 1_000, 200
"""Rounds."""


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
        """Whether the best that there is is known, and not only the best that was seen."""
        return (self.low, self.high) == (0.0, 1.0)

    @property
    def blank(self) -> bool:
        """Whether all rewards were the same, which may be the best or the worst that there is."""
        return self.low == self.high

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


def change_of(course: Course, episodes: Played, environment: str | None = None) -> Change | None:
    """How the whole reward changed, or what one environment gave. None: not played at an end.

    From the episodes where they are there. Only the log knows what stands in no episode, but it
    cannot tell how sure it is.
    """
    name = environment or "reward"
    one, other = (_sums(groups, environment) for groups in ends(course, episodes, environment))
    if one and other:
        scale = Scale.of(reward for group in episodes.groups for reward in group.of(environment))
        return Change(name, _mean(one), _mean(other), scale, difference(one, other))
    return logged_part(course, environment) if environment else logged_reward(course)


def ends(
    course: Course, episodes: Played, environment: str | None = None
) -> tuple[list[Group], list[Group]]:
    """The groups of the run's beginning and of its end."""
    opening = step_of(course.beginning[-1])
    closing = step_of(course.lines[-course.edge - 1]) + 1 if len(course.lines) > 1 else 0
    return (
        episodes.between(1, opening, environment),
        episodes.between(closing, course.steps, environment),
    )


def logged_reward(course: Course) -> Change | None:
    """What the log alone tells of the whole reward."""
    return _logged(course, "reward", "reward", "reward_std")


def logged_part(course: Course, name: str) -> Change | None:
    """What it tells of an environment, or of a reward function."""
    return _logged(course, name, f"rewards/{name}/mean", f"rewards/{name}/std")


def _logged(course: Course, name: str, key: str, spread: str) -> Change | None:
    initial, final = mean(course.beginning, key), mean(course.end, key)
    if initial is None or final is None:
        return None
    scale = Scale.of(column(course.lines, key))
    return Change(name, initial, final, scale if scale.unit else _wide(course, key, spread))


def _wide(course: Course, key: str, spread: str) -> Scale:
    """From means and deviations: rewards lie further apart than the means of steps do."""
    steps = [(line, figure(line, spread) or 0.0) for line in course.lines]
    return Scale.of(
        value + side * wide
        for line, wide in steps
        if (value := figure(line, key)) is not None
        for side in (-1, 1)
    )


def parts_of(course: Course, episodes: Played) -> tuple[Change, ...]:
    """What the environments gave, and the reward functions; nothing where one gave all of it."""
    environments = episodes.environments
    others = [name for name in _names(course.lines) if name not in environments]
    if len(environments) + len(others) < 2:
        return ()
    found = [change_of(course, episodes, environment) for environment in environments]
    found += [logged_part(course, name) for name in others]
    return tuple(change for change in found if change is not None)


def _names(lines: Iterable[Line]) -> list[str]:
    keys = {key for line in lines for key in line if key.startswith("rewards/")}
    return sorted(
        key.removeprefix("rewards/").removesuffix("/mean") for key in keys if key.endswith("/mean")
    )


def difference(before: Sequence[_Sum], after: Sequence[_Sum], *, seed: int = 0) -> Interval | None:
    """The 95 % interval of one mean less another; the same sums give the same.

    None where either end has too few tasks, or where no task at either end differs from the
    others: drawn again they would give the same difference every time, which is no certainty.
    """
    fewest = min(len(before), len(after))
    if fewest < MIN_SAMPLES or not (_differ(before) or _differ(after)):
        return None
    chance = random.Random(seed)
    rounds = max(_LEAST, min(_MOST, _DRAWS // (len(before) + len(after))))
    drawn = sorted(_redrawn(after, chance) - _redrawn(before, chance) for _ in range(rounds))
    found, cut = _mean(after) - _mean(before), round(tail_fraction(fewest) * rounds)
    return Interval(min(found, drawn[cut]), max(found, drawn[rounds - 1 - cut]))


def _differ(sums: Sequence[_Sum]) -> bool:
    return len({one.total / one.members for one in sums}) > 1


def _redrawn(sums: Sequence[_Sum], rng: random.Random) -> float:
    return _mean(rng.choices(sums, k=len(sums)))


def _mean(sums: Sequence[_Sum]) -> float:
    return sum(one.total for one in sums) / sum(one.members for one in sums)


def _sums(groups: Iterable[Group], environment: str | None) -> list[_Sum]:
    """One for each task, however often it came up: it is as hard every time."""
    rewards: defaultdict[tuple[str, str], list[float]] = defaultdict(list)
    for group in groups:
        rewards[group.environment, group.task].extend(group.of(environment))
    return [_Sum(sum(found), len(found)) for found in rewards.values() if found]
