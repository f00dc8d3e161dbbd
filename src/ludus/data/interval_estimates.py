"""Means and shares with their 95 % confidence intervals, and differences of means.

Attempts at one task are not independent. So each task has the same weight, however many attempts
were made at it, and an interval counts one value per task. Which episodes count
is decided by `ResumeIndex`.

Means have Student's t, corrected for skewness by Hall's transformation (On the Removal of Skewness
by Transformation, 1992), which widens the interval on the side of the long tail. Shares have
Wilson's score interval; if the attempts at a task differ, with an effective number of tasks
between the number of tasks and the number of attempts (Franco et al., Comparative Study of
Confidence Intervals for Proportions in Complex Sample Surveys, 2019).
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from math import cbrt, fsum, sqrt
from statistics import fmean, variance
from typing import TYPE_CHECKING, NamedTuple, Self

from ludus.data.tool_schema import JsonObject

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

Z_975 = 1.959963984540054
"""The 97.5 % quantile of the normal distribution."""
MIN_SAMPLES = 5
"""With fewer values no interval is given: it would suggest more certainty than there is."""
_MIN_SPREAD = 1e-12
"""Relative difference below which values are equal."""
_MIN_SKEWNESS = 1e-6
"""Below it the transformation is the identity, up to rounding errors."""


class Interval(NamedTuple):
    """A 95 % confidence interval."""

    low: float
    high: float


def mean_interval(values: Sequence[float]) -> Interval | None:
    """The interval of a mean.

    None for fewer than `MIN_SAMPLES` values, for values whose squares are no floats, and for values
    that are all equal: a deviation of 0 would look like certainty.
    """
    n = len(values)
    if n < MIN_SAMPLES:
        return None
    low, high = min(values), max(values)
    # The means of equal rewards differ by rounding errors.
    if high - low <= _MIN_SPREAD * max(abs(low), abs(high)):
        return None
    mean = fsum(value / n for value in values)
    try:
        spread = fsum((value - mean) ** 2 for value in values) / n
        skewness: float = fsum((value - mean) ** 3 for value in values) / n / spread**1.5
    except (OverflowError, ZeroDivisionError):
        return None
    deviation = sqrt(spread * n / (n - 1))
    quantile = student_t_quantile(n - 1) / sqrt(n)

    def untransform(quantile: float) -> float:
        if abs(skewness) < _MIN_SKEWNESS:
            return quantile
        root: float = cbrt(1 + skewness * (quantile - skewness / (6 * n)))
        return 3 / skewness * (root - 1)

    return Interval(
        mean - deviation * untransform(quantile), mean - deviation * untransform(-quantile)
    )


def student_t_quantile(degrees_of_freedom: float) -> float:
    """The 97.5 % quantile of Student's t, which widens an interval of few values.

    By the Cornish-Fisher expansion, whose error is below 0.01 for 4 or more degrees of freedom.
    """
    z, v = Z_975, degrees_of_freedom
    return (
        z
        + (z**3 + z) / (4 * v)
        + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * v**2)
        + (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * v**3)
    )


def wilson_interval(hits: float, n: float) -> Interval:
    """Return Wilson's score interval of a share, which is valid near 0 and 1 and for small n."""
    if n <= 0:
        raise ValueError(f"n must be positive, got {n}")
    share, z2_n = hits / n, Z_975 * Z_975 / n
    center = (share + z2_n / 2) / (1 + z2_n)
    margin = Z_975 * sqrt(max(0.0, share * (1 - share)) / n + z2_n / (4 * n)) / (1 + z2_n)
    return Interval(max(0.0, min(share, center - margin)), min(1.0, max(share, center + margin)))


def share_interval(task_shares: Sequence[float], attempts: int) -> Interval:
    """Return the interval of a mean of shares, each from the attempts at one task."""
    n, share = len(task_shares), fsum(task_shares) / len(task_shares)
    if n < MIN_SAMPLES or is_binary(task_shares):
        return wilson_interval(share * n, n)
    spread = fsum((each - share) ** 2 for each in task_shares) / (n - 1)
    effective_n = float(attempts)
    if spread > 0:
        effective_n = min(effective_n, n * share * (1 - share) / spread)
    effective_n *= (Z_975 / student_t_quantile(n - 1)) ** 2
    return wilson_interval(share * effective_n, effective_n)


def is_binary(shares: Sequence[float]) -> bool:
    """Whether each task is a hit or a miss as a whole, so that they can be counted."""
    return all(share in (0.0, 1.0) for share in shares)


def difference_interval(before: Sequence[float], after: Sequence[float]) -> Interval | None:
    """The interval of the difference between the means of unpaired values, by Welch's t-test.

    None for fewer than `MIN_SAMPLES` values on a side, and if the values of each side are equal.
    """
    if min(len(before), len(after)) < MIN_SAMPLES:
        return None
    sides = [(variance(values) / len(values), len(values) - 1) for values in (before, after)]
    if not (total := sum(part for part, _ in sides)):
        return None
    degrees_of_freedom = total**2 / sum(part**2 / degrees for part, degrees in sides)
    margin = student_t_quantile(degrees_of_freedom) * sqrt(total)
    change = fmean(after) - fmean(before)
    return Interval(change - margin, change + margin)


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
        return cls(fsum(mean / len(means) for mean in means), low, high, n)

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
    interval = share_interval(means, n) if is_share else mean_interval(means)
    return MeanEstimate.from_means(means, interval, n)


def query_mean_reward(
    database: DuckDBPyConnection, episodes: str, *, task: str
) -> MeanEstimate | None:
    """Estimate the mean reward of a table or subquery of episodes; None without a scored one.

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
    """Format an estimate as 0.350 (0.281 to 0.420); `label` precedes the interval."""
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


def paired_share_interval(pairs: Sequence[tuple[float, float]]) -> Interval:
    """Return the interval of the mean of first - second, for the shares of two at each task."""
    differences = [first - second for first, second in pairs]
    has_counts = is_binary([share for pair in pairs for share in pair])
    interval = None if has_counts else mean_interval(differences)
    if interval is not None:
        return Interval(max(-1.0, interval.low), min(1.0, interval.high))
    return newcombe_interval(
        both=fsum(first * second for first, second in pairs),
        first=fsum(first * (1 - second) for first, second in pairs),
        second=fsum((1 - first) * second for first, second in pairs),
        neither=fsum((1 - first) * (1 - second) for first, second in pairs),
    )


def newcombe_interval(both: float, first: float, second: float, neither: float) -> Interval:
    """Return Newcombe's score interval (method 10) of a difference of paired shares.

    The counts are of tasks that both solved, only the first, only the second, and neither. The
    difference is the first minus the second.
    """
    n = both + first + second + neither
    p, q = (both + first) / n, (both + second) / n
    p_low, p_high = wilson_interval(both + first, n)
    q_low, q_high = wilson_interval(both + second, n)
    # The correlation, with Newcombe's continuity correction, which can only shrink it.
    margins, phi = (both + first) * (second + neither) * (both + second) * (first + neither), 0.0
    if margins > 0:
        product = both * neither - first * second
        corrected = max(0.0, product - n / 2) if product > 0 else product
        phi = max(-1.0, min(1.0, corrected / sqrt(margins)))
    below = _combine_margins(p - p_low, q_high - q, phi)
    above = _combine_margins(p_high - p, q - q_low, phi)
    return Interval(max(-1.0, p - q - below), min(1.0, p - q + above))


def _combine_margins(one: float, other: float, phi: float) -> float:
    return sqrt(max(0.0, one * one - 2 * phi * one * other + other * other))
