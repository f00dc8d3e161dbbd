"""95 % confidence intervals of means, of shares, and by the bootstrap of any statistic.

Means have Student's t, corrected for skewness. Rewards and token counts are skewed, so that a
symmetric interval of few values misses the mean too often. Hall's transformation (Hall, On the
Removal of Skewness by Transformation, 1992) widens the interval on the side of the long tail. It is
a closed form: the same values give the same interval.

Shares have Wilson's score interval. The attempts at one task are not independent: they are a
cluster. Where they differ, the interval of a share is that of an effective number of tasks, which
lies between the number of tasks and the number of attempts (Franco et al., Comparative Study of
Confidence Intervals for Proportions in Complex Sample Surveys, 2019).

A percentile bootstrap of n values is too narrow by sqrt((n - 1) / n), and by the difference between
Student's t and the normal distribution. The expanded percentile interval corrects for both by more
extreme percentiles (Hesterberg, What Teachers Should Know About the Bootstrap, 2015).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import cbrt, fsum, sqrt
from random import Random
from statistics import NormalDist
from typing import NamedTuple

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

    None for fewer than `MIN_SAMPLES` values, and for values that are all equal: a deviation of 0
    would look like certainty.
    """
    n = len(values)
    if n < MIN_SAMPLES:
        return None
    low, high = min(values), max(values)
    # The means of equal rewards differ by rounding errors.
    if high - low <= _MIN_SPREAD * max(abs(low), abs(high)):
        return None
    mean = fsum(values) / n
    variance = fsum((value - mean) ** 2 for value in values) / n
    if variance == 0:
        return None
    skewness: float = fsum((value - mean) ** 3 for value in values) / n / variance**1.5
    deviation = sqrt(variance * n / (n - 1))
    quantile = student_t_quantile(n - 1) / sqrt(n)

    def untransform(quantile: float) -> float:
        if abs(skewness) < _MIN_SKEWNESS:
            return quantile
        root: float = cbrt(1 + skewness * (quantile - skewness / (6 * n)))
        return 3 / skewness * (root - 1)

    return Interval(
        mean - deviation * untransform(quantile), mean - deviation * untransform(-quantile)
    )


def student_t_quantile(degrees_of_freedom: int) -> float:
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
    variance = fsum((each - share) ** 2 for each in task_shares) / (n - 1)
    effective_n = float(attempts)
    if variance > 0:
        effective_n = min(effective_n, n * share * (1 - share) / variance)
    effective_n *= (Z_975 / student_t_quantile(n - 1)) ** 2
    return wilson_interval(share * effective_n, effective_n)


def is_binary(shares: Sequence[float]) -> bool:
    """Whether each task is a hit or a miss as a whole, so that they can be counted."""
    return all(share in (0.0, 1.0) for share in shares)


def expanded_percentile_interval(
    resample: Callable[[Random], float], observed: float, *, n: int, rounds: int, seed: int = 0
) -> Interval:
    """The interval of a statistic, from `rounds` bootstrap samples; deterministic for a seed.

    Args:
        resample: draws a bootstrap sample and returns its statistic.
        observed: the statistic of the observed values, which is always within the interval.
        n: number of observed values; for two samples, that of the smaller one.
        rounds: number of bootstrap samples.
    """
    rng = Random(seed)
    statistics = sorted(resample(rng) for _ in range(rounds))
    # The share of the bootstrap samples to cut off on either side.
    tail_fraction = NormalDist().cdf(-sqrt(n / (n - 1)) * student_t_quantile(n - 1))
    tail = round(tail_fraction * rounds)
    return Interval(min(observed, statistics[tail]), max(observed, statistics[rounds - 1 - tail]))
