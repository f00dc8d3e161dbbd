"""The mean over tasks, with its 95 % interval: mean rewards everywhere, and metrics of evaluations.

Attempts at one task are not independent. So each task has the same weight, however many attempts
were made at it, and the interval is that of as many values as there are tasks. Which episodes
count is decided by `ResumeIndex`: of several attempts with one id the first that is not broken,
and only if it has a reward. One that a limit ended counts with the reward that it has.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from math import copysign, frexp, fsum, isfinite, ldexp
from sys import float_info
from typing import TYPE_CHECKING, Self

from ludus.data.intervals import Interval, mean_interval, share_interval
from ludus.data.tool_schema import JsonObject

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection


@dataclass(frozen=True, slots=True)
class MeanEstimate:
    """A mean over tasks, with its 95 % interval."""

    value: float
    low: float | None
    high: float | None
    """None without an interval: see `mean_interval`."""
    n: int
    """Number of episodes, or of pairs of them."""

    @classmethod
    def from_means(cls, means: Sequence[float], interval: Interval | None, n: int) -> Self:
        """The estimate from the value of each task."""
        low, high = interval or (None, None)
        return cls(fsum(means) / len(means), low, high, n)

    @property
    def interval(self) -> list[float] | None:
        return None if self.low is None or self.high is None else [self.low, self.high]

    def as_json(self) -> JsonObject:
        """The estimate under the keys of `summary.json`."""
        return asdict(self)


def estimate_mean(means: Sequence[float], n: int, *, is_share: bool) -> MeanEstimate | None:
    """Estimate a mean from the means of the tasks, over `n` episodes; None without tasks.

    `is_share`: every value is 1 (hit) or 0 (miss). Then there is an interval also for a few tasks
    and for equal ones.
    """
    if not means:
        return None
    if is_share:
        return MeanEstimate.from_means(means, share_interval(means, n), n)
    # A power of two, so that nothing is rounded: squares of rewards of 1e200 have no float.
    exponent = frexp(max(map(abs, means)))[1] if all(map(isfinite, means)) else 0
    scaled = [ldexp(mean, -exponent) for mean in means]
    interval, value = mean_interval(scaled), ldexp(fsum(scaled) / len(scaled), exponent)
    if interval is None:
        return MeanEstimate(value, None, None, n)
    low, high = (_saturating_ldexp(end, exponent) for end in interval)
    return MeanEstimate(value, low, high, n)


def _saturating_ldexp(value: float, exponent: int) -> float:
    """`value * 2**exponent`, or the largest float: an interval may be wider than its rewards."""
    try:
        return ldexp(value, exponent)
    except OverflowError:
        return copysign(float_info.max, value)


def query_mean_reward(
    database: DuckDBPyConnection, episodes: str, *, task: str
) -> MeanEstimate | None:
    """The mean reward of a table or subquery of episodes; None without a scored one.

    `task` is the column that names the task. The episodes that do not count must be left out.
    """
    tasks = database.execute(
        # Scaled, so that the sum of huge rewards does not overflow.
        "SELECT avg(reward / pow(2, 64)) * pow(2, 64) AS mean, count(*) AS n, "
        "bool_and(reward IN (0, 1)) AS is_binary "
        f"FROM {episodes} WHERE reward NOT NULL GROUP BY {task}"
    ).fetchnumpy()
    n, is_share = int(tasks["n"].sum()), bool(tasks["is_binary"].all())
    return estimate_mean(tasks["mean"].tolist(), n, is_share=is_share)


@dataclass(slots=True)
class TaskRewards:
    """The rewards of a run, summed for each task: about 115 bytes a task."""

    n: int = 0
    """Number of scored episodes."""
    is_binary: bool = True
    """Whether every reward is 0 or 1."""
    _places: dict[int, int] = field(default_factory=dict, repr=False)
    _sums: array[float] = field(default_factory=lambda: array("d"), repr=False)
    _counts: array[int] = field(default_factory=lambda: array("q"), repr=False)
    _sum_of_means: float = 0.0

    def add(self, task: str, reward: float) -> None:
        self.n += 1
        if self.is_binary and reward not in (0.0, 1.0):
            self.is_binary = False
        key, sums, counts = hash(task), self._sums, self._counts
        place = self._places.get(key)
        if place is None:
            self._places[key] = len(sums)
            sums.append(reward)
            counts.append(1)
            self._sum_of_means += reward
            return
        before = sums[place] / counts[place]
        sums[place] += reward
        counts[place] += 1
        self._sum_of_means += sums[place] / counts[place] - before

    @property
    def mean(self) -> float | None:
        """The mean so far, without going through the tasks."""
        return self._sum_of_means / len(self._sums) if self._sums else None

    @property
    def means(self) -> list[float]:
        """The mean of each task."""
        return [total / count for total, count in zip(self._sums, self._counts, strict=True)]

    def estimate(self) -> MeanEstimate | None:
        """The mean reward; None without a scored episode."""
        return estimate_mean(self.means, self.n, is_share=self.is_binary)


def format_mean(value: float, interval: Sequence[float] | None, *, label: str = "") -> str:
    """A mean with its interval in brackets: 0.350 (0.281 to 0.420); `label` stands before that."""
    if interval is None:
        return f"{value:,.3f}"
    return f"{value:,.3f} ({label}{interval[0]:,.3f} to {interval[1]:,.3f})"


REWARD_TOLERANCE = 1e-6
"""Relative difference up to which two rewards are equal. Sums of reward parts are not exact, and
trainers hold rewards in float32."""


def is_zero_variance(rewards: Sequence[float | None]) -> bool:
    """Whether a group has no learning signal: fewer than two scored attempts, or equal rewards."""
    scored = [reward for reward in rewards if reward is not None]
    if len(scored) < 2:
        return True
    highest, lowest = max(scored), min(scored)
    return highest - lowest <= REWARD_TOLERANCE * max(1.0, abs(highest), abs(lowest))
