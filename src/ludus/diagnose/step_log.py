"""The training log of a GRPO run by step: windows, the scale of rewards, buckets of a curriculum.

Pure functions. A *window* is a number of consecutive entries; the first and the last window of a
run are what a diagnosis compares.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import pi, sqrt
from statistics import fmean

from ludus.data.training_log import (
    LogEntry,
    metric,
    metric_values,
    read_bucket_metrics,
    step_number,
    window_size,
)

_TRAINING_KEYS = ("reward", "zero_variance", "unscored")
"""Keys that only the entry of a training step has."""


def metric_mean(entries: Iterable[LogEntry], key: str) -> float | None:
    values = metric_values(entries, key)
    return fmean(values) if values else None


def logged_zero_variance_share(entries: Sequence[LogEntry]) -> float | None:
    """Return the share of zero-variance groups among the scored groups.

    The log counts a group without scores under `zero_variance`. The members of a group play the
    same task, so a fault mostly hits all of them: the share of unscored episodes is taken as the
    share of unscored groups, and is subtracted.
    """
    share, unscored = metric_mean(entries, "zero_variance"), metric_mean(entries, "unscored") or 0.0
    if share is None or unscored >= 1:
        return None
    return max(0.0, (share - unscored) / (1 - unscored))


def window_means(values: Sequence[float], size: int) -> list[float]:
    """Return the means of all windows of `size` consecutive values."""
    return [fmean(values[at : at + size]) for at in range(len(values) - size + 1)]


def estimate_noise(rewards: Sequence[float]) -> float:
    """Estimate the standard deviation of the rewards of steps from successive differences.

    Differences of neighbouring steps, because over a longer distance the reward also changes by
    learning. Absolute instead of squared differences, so that a single jump weighs little.
    """
    if len(rewards) < 2:
        return 0.0
    # Two draws from a normal distribution differ by 2 sigma / sqrt(pi) on average.
    return fmean(abs(after - before) for before, after in pairwise(rewards)) * sqrt(pi) / 2


@dataclass(frozen=True, slots=True)
class RewardScale:
    """The range of the rewards, from the worst to the best."""

    low: float
    high: float

    @classmethod
    def from_rewards(cls, rewards: Iterable[float]) -> RewardScale:
        """The scale of these rewards: 0 to 1 if all of them lie in it, else the observed range."""
        values = list(rewards)
        low, high = min(values, default=0.0), max(values, default=1.0)
        return cls(0.0, 1.0) if low >= 0.0 and high <= 1.0 else cls(low, high)

    @property
    def is_unit(self) -> bool:
        """Whether the scale is 0 to 1: only then is the best possible reward known."""
        return (self.low, self.high) == (0.0, 1.0)

    @property
    def is_constant(self) -> bool:
        """Whether the scale has no width: the rewards may be the best or the worst possible."""
        return self.low == self.high

    def normalize(self, reward: float) -> float:
        """Map the worst reward to 0 and the best to 1."""
        return self.normalize_delta(reward - self.low)

    def normalize_delta(self, difference: float) -> float:
        """Return a difference of rewards as a fraction of the scale."""
        width = self.high - self.low
        return difference / width if width else 0.0


@dataclass(frozen=True, slots=True)
class BestWindow:
    """The window with the highest mean reward."""

    first: int
    last: int
    reward: float


@dataclass(frozen=True, slots=True)
class StepLog:
    """The log of a run, ordered by step."""

    entries: tuple[LogEntry, ...]
    """Entries of steps for which episodes were played."""
    held_out: tuple[tuple[int, float], ...]
    """Steps at which held-out tasks were played (0: before training), and their mean reward."""
    steps: int
    """The last step. A step that trains again on earlier episodes has no entry in `entries`."""

    @classmethod
    def from_entries(cls, entries: Iterable[LogEntry], *, completed_steps: int = 0) -> StepLog:
        """Sort the entries into training steps and held-out evaluations.

        A step that was logged twice, because the run resumed from an earlier checkpoint, counts as
        logged last. `completed_steps` is given for runs whose last steps were not logged.
        """
        by_step, held_out = dict[int, LogEntry](), dict[int, float]()
        for entry in entries:
            if metric(entry, "step") is None:
                continue
            step = step_number(entry)
            completed_steps = max(completed_steps, step)
            if (reward := metric(entry, "eval_reward")) is not None:
                held_out[step] = reward
            if step > 0 and any(metric(entry, key) is not None for key in _TRAINING_KEYS):
                by_step[step] = entry
        ordered = tuple(by_step[step] for step in sorted(by_step))
        return cls(ordered, tuple(sorted(held_out.items())), completed_steps)

    @property
    def window_size(self) -> int:
        """Entries in the first and in the last window, which overlap only in a run of one entry."""
        return window_size(len(self.entries))

    @property
    def first_window(self) -> tuple[LogEntry, ...]:
        return self.entries[: self.window_size]

    @property
    def last_window(self) -> tuple[LogEntry, ...]:
        return self.entries[-self.window_size :]

    def entries_before(self, step: int) -> tuple[LogEntry, ...]:
        return tuple(entry for entry in self.entries if step_number(entry) < step)

    def best_window(self) -> BestWindow | None:
        """Return the window with the highest mean reward; None without rewards."""
        rewards = metric_values(self.entries, "reward")
        if not rewards:
            return None
        steps = [
            step_number(entry) for entry in self.entries if metric(entry, "reward") is not None
        ]
        size = min(self.window_size, len(rewards))
        means = window_means(rewards, size)
        best = means.index(max(means))
        return BestWindow(steps[best], steps[best + size - 1], means[best])

    @property
    def standard_error(self) -> float:
        """Standard error of a window's mean reward."""
        return estimate_noise(metric_values(self.entries, "reward")) / sqrt(self.window_size)


FIRST_GROUPS = 8
"""Groups of a bucket over which its first success rate is averaged."""


@dataclass(frozen=True, slots=True)
class BucketStats:
    """A bucket of a curriculum over the whole run."""

    label: str
    groups: float
    first_success: float | None
    last_success: float | None
    """None: no attempt was scored."""


def bucket_stats(entries: Sequence[LogEntry]) -> tuple[BucketStats, ...]:
    """The buckets in a log, in the order of their first draws; empty without a curriculum."""
    groups: dict[str, float] = {}
    first: dict[str, list[float]] = {}
    last: dict[str, float] = {}
    for entry in entries:
        for label, bucket in read_bucket_metrics(entry).items():
            if bucket.success is not None:
                if groups.get(label, 0.0) < FIRST_GROUPS:
                    first.setdefault(label, []).append(bucket.success)
                last[label] = bucket.success
            groups[label] = groups.get(label, 0.0) + bucket.groups
    return tuple(
        BucketStats(label, count, fmean(first[label]) if label in first else None, last.get(label))
        for label, count in groups.items()
    )
