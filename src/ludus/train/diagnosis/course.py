"""How a run went, from its log: the lines of its steps, and means over stretches of them.

Pure. What the figures mean is the verdicts' business; reading files is `folder`'s.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import isfinite, pi, sqrt
from statistics import fmean
from typing import Any

Line = Mapping[str, Any]

_EDGE = 0.1
"""The part of a run at either end that is taken for its beginning and its end."""
_FEWEST = 5
"""Lines that a beginning has at least: one step's reward is mostly chance."""
_TRAINING = ("reward", "equal", "unscored")
"""What only the line of a training step has."""


def figure(line: Line, key: str) -> float | None:
    """The number under this key; None where there is none, or none that can be reckoned with."""
    found = line.get(key)
    if isinstance(found, bool) or not isinstance(found, int | float):
        return None
    return float(found) if isfinite(found) else None


def column(lines: Iterable[Line], key: str) -> list[float]:
    found = (figure(line, key) for line in lines)
    return [value for value in found if value is not None]


def mean(lines: Iterable[Line], key: str) -> float | None:
    values = column(lines, key)
    return fmean(values) if values else None


def equal_part(lines: Sequence[Line]) -> float | None:
    """The share of groups whose members did as well as one another, of those that were scored.

    The log counts a group without scores as equal. What meets one member meets mostly all of them,
    because they play the same task: so the groups are taken for unscored that episodes are.
    """
    equal, unscored = mean(lines, "equal"), mean(lines, "unscored") or 0.0
    if equal is None or unscored >= 1:
        return None
    return max(0.0, (equal - unscored) / (1 - unscored))


def entropy_key(lines: Iterable[Line]) -> str:
    """Where a log has the policy's entropy.

    `surprise` is that of every episode; the trainer's own `entropy` knows only those that were
    trained on, which are the uncertain ones.
    """
    return "surprise" if column(lines, "surprise") else "entropy"


def step_of(line: Line) -> int:
    return int(figure(line, "step") or 0)


@dataclass(frozen=True, slots=True)
class Plateau:
    """The stretch of a run with the highest mean reward."""

    first: int
    last: int
    """Its steps."""
    reward: float


@dataclass(frozen=True, slots=True)
class Course:
    """The log of a run, in the order of its steps."""

    lines: tuple[Line, ...]
    """Those that tell of episodes."""
    held_out: tuple[tuple[int, float], ...]
    """Steps after which held-out tasks were played, 0 for none yet, and their mean reward."""
    steps: int
    """The last, with or without a reward: a step that learns from episodes again has none."""

    @classmethod
    def of(cls, lines: Iterable[Line], *, made: int = 0) -> Course:
        """Of a step that was logged twice, because the run went on before it, the later line.

        `made` are the steps that it is known to have had, of which the last need not be logged.
        """
        steps, held_out = dict[int, Line](), dict[int, float]()
        for line in lines:
            if figure(line, "step") is None:
                continue
            step = step_of(line)
            made = max(made, step)
            if (reward := figure(line, "eval_reward")) is not None:
                held_out[step] = reward
            if step > 0 and any(figure(line, key) is not None for key in _TRAINING):
                steps[step] = line
        rewarded = tuple(steps[step] for step in sorted(steps))
        return cls(rewarded, tuple(sorted(held_out.items())), made)

    @property
    def edge(self) -> int:
        """Lines of the beginning, and of the end; the two never overlap but in a single line."""
        asked = max(_FEWEST, round(_EDGE * len(self.lines)))
        return max(1, min(asked, len(self.lines) // 2))

    @property
    def beginning(self) -> tuple[Line, ...]:
        return self.lines[: self.edge]

    @property
    def end(self) -> tuple[Line, ...]:
        return self.lines[-self.edge :]

    def before(self, step: int) -> tuple[Line, ...]:
        return tuple(line for line in self.lines if step_of(line) < step)

    def plateau(self) -> Plateau | None:
        """The best stretch as long as the run's beginning is; None without rewards."""
        rewards = column(self.lines, "reward")
        steps = [step_of(line) for line in self.lines if figure(line, "reward") is not None]
        if not rewards:
            return None
        width = min(self.edge, len(rewards))
        means = running_means(rewards, width)
        best = max(range(len(means)), key=means.__getitem__)
        return Plateau(steps[best], steps[best + width - 1], means[best])

    @property
    def noise(self) -> float:
        """The standard error of a stretch's mean reward, from how much neighbours differ.

        Neighbours, because over more of the run a difference may be what was learned; and the mean
        of their distances instead of their squares, because one jump is no noise.
        """
        rewards = column(self.lines, "reward")
        if len(rewards) < 2:
            return 0.0
        distance = fmean(abs(after - before) for before, after in pairwise(rewards))
        # Of two draws from a normal distribution it is 2 / sqrt(pi) deviations.
        return distance * sqrt(pi) / 2 / sqrt(self.edge)


def running_means(values: Sequence[float], width: int) -> list[float]:
    """The mean of every stretch of this width, in order."""
    return [fmean(values[at : at + width]) for at in range(len(values) - width + 1)]
