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

LogEntry = Mapping[str, Any]

_WINDOW_FRACTION = 0.1
"""The part of a run at either end that is taken for its beginning and its end."""
_MIN_WINDOW_SIZE = 5
"""Lines that a beginning has at least: one step's reward is mostly chance."""
_TRAINING_KEYS = ("reward", "equal", "unscored")
"""What only the line of a training step has."""


def metric(entry: LogEntry, key: str) -> float | None:
    """The number under this key; None where there is none, or none that can be reckoned with."""
    found = entry.get(key)
    if isinstance(found, bool) or not isinstance(found, int | float):
        return None
    return float(found) if isfinite(found) else None


def metric_values(entries: Iterable[LogEntry], key: str) -> list[float]:
    found = (metric(line, key) for line in entries)
    return [value for value in found if value is not None]


def metric_mean(entries: Iterable[LogEntry], key: str) -> float | None:
    values = metric_values(entries, key)
    return fmean(values) if values else None


def logged_zero_variance_share(entries: Sequence[LogEntry]) -> float | None:
    """The share of groups whose members did as well as one another, of those that were scored.

    The log counts a group without scores as equal. What meets one member meets mostly all of them,
    because they play the same task: so the groups are taken for unscored that episodes are.
    """
    equal, unscored = metric_mean(entries, "equal"), metric_mean(entries, "unscored") or 0.0
    if equal is None or unscored >= 1:
        return None
    return max(0.0, (equal - unscored) / (1 - unscored))


def entropy_key(entries: Iterable[LogEntry]) -> str:
    """Where a log has the policy's entropy.

    `surprise` is that of every episode; the trainer's own `entropy` knows only those that were
    trained on, which are the uncertain ones.
    """
    return "surprise" if metric_values(entries, "surprise") else "entropy"


def step_number(entry: LogEntry) -> int:
    return int(metric(entry, "step") or 0)


@dataclass(frozen=True, slots=True)
class BestWindow:
    """The stretch of a run with the highest mean reward."""

    first: int
    last: int
    """Its steps."""
    reward: float


@dataclass(frozen=True, slots=True)
class StepLog:
    """The log of a run, in the order of its steps."""

    entries: tuple[LogEntry, ...]
    """Those that tell of episodes."""
    held_out: tuple[tuple[int, float], ...]
    """Steps after which held-out tasks were played, 0 for none yet, and their mean reward."""
    steps: int
    """The last, with or without a reward: a step that learns from episodes again has none."""

    @classmethod
    def from_entries(cls, entries: Iterable[LogEntry], *, completed_steps: int = 0) -> StepLog:
        """Of a step that was logged twice, because the run went on before it, the later line.

        `made` are the steps that it is known to have had, of which the last need not be logged.
        """
        steps, held_out = dict[int, LogEntry](), dict[int, float]()
        for line in entries:
            if metric(line, "step") is None:
                continue
            step = step_number(line)
            completed_steps = max(completed_steps, step)
            if (reward := metric(line, "eval_reward")) is not None:
                held_out[step] = reward
            if step > 0 and any(metric(line, key) is not None for key in _TRAINING_KEYS):
                steps[step] = line
        rewarded = tuple(steps[step] for step in sorted(steps))
        return cls(rewarded, tuple(sorted(held_out.items())), completed_steps)

    @property
    def window_size(self) -> int:
        """Lines of the beginning, and of the end; the two never overlap but in a single line."""
        asked = max(_MIN_WINDOW_SIZE, round(_WINDOW_FRACTION * len(self.entries)))
        return max(1, min(asked, len(self.entries) // 2))

    @property
    def first_window(self) -> tuple[LogEntry, ...]:
        return self.entries[: self.window_size]

    @property
    def last_window(self) -> tuple[LogEntry, ...]:
        return self.entries[-self.window_size :]

    def entries_before(self, step: int) -> tuple[LogEntry, ...]:
        return tuple(line for line in self.entries if step_number(line) < step)

    def best_window(self) -> BestWindow | None:
        """The best stretch as long as the run's beginning is; None without rewards."""
        rewards = metric_values(self.entries, "reward")
        steps = [step_number(line) for line in self.entries if metric(line, "reward") is not None]
        if not rewards:
            return None
        width = min(self.window_size, len(rewards))
        means = running_means(rewards, width)
        best = max(range(len(means)), key=means.__getitem__)
        return BestWindow(steps[best], steps[best + width - 1], means[best])

    @property
    def standard_error(self) -> float:
        """The standard error of a stretch's mean reward, from how much neighbours differ.

        Neighbours, because over more of the run a difference may be what was learned; and the mean
        of their distances instead of their squares, because one jump is no noise.
        """
        rewards = metric_values(self.entries, "reward")
        if len(rewards) < 2:
            return 0.0
        distance = fmean(abs(after - before) for before, after in pairwise(rewards))
        # Of two draws from a normal distribution it is 2 / sqrt(pi) deviations.
        return distance * sqrt(pi) / 2 / sqrt(self.window_size)


def running_means(values: Sequence[float], width: int) -> list[float]:
    """The mean of every stretch of this width, in order."""
    return [fmean(values[at : at + width]) for at in range(len(values) - width + 1)]
