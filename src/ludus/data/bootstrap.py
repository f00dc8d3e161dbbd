"""Bootstrap confidence intervals: the expanded percentile interval.

A percentile bootstrap of n values is too narrow by sqrt((n - 1) / n), and by the difference between
Student's t and the normal distribution. The expanded percentile interval corrects for both by more
extreme percentiles (Hesterberg, What Teachers Should Know About the Bootstrap, 2015).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import fsum, sqrt
from random import Random
from statistics import NormalDist, fmean
from typing import NamedTuple

Z_975 = 1.959963984540054
"""The 97.5 % quantile of the normal distribution."""
MIN_SAMPLES = 5
"""With fewer values no interval is given: it would suggest more certainty than there is."""
_MAX_BOOTSTRAP_DRAWS = 2_000_000
"""Values drawn over all bootstrap rounds: less than a second of work."""
_MAX_ROUNDS, _MIN_ROUNDS = 2_000, 200


class Interval(NamedTuple):
    """A 95 % confidence interval."""

    low: float
    high: float


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


def bootstrap_interval(values: Sequence[float], *, seed: int = 0) -> Interval | None:
    """The expanded percentile interval of a mean; deterministic for a seed.

    None for fewer than `MIN_SAMPLES` values, and for values that are all equal: every resample
    would have the same mean, which would look like certainty. With more than 10,000 values it is
    the normal interval, which then differs by less than the bootstrap's own noise.
    """
    n = len(values)
    if n < MIN_SAMPLES or min(values) == max(values):
        return None
    if n > _MAX_BOOTSTRAP_DRAWS // _MIN_ROUNDS:
        mean = fmean(values)
        margin = Z_975 * sqrt(fsum((value - mean) ** 2 for value in values) / (n - 1) / n)
        return Interval(mean - margin, mean + margin)
    rounds = max(_MIN_ROUNDS, min(_MAX_ROUNDS, _MAX_BOOTSTRAP_DRAWS // n))
    return expanded_percentile_interval(
        lambda rng: sum(rng.choices(values, k=n)) / n,
        sum(values) / n,
        n=n,
        rounds=rounds,
        seed=seed,
    )


def student_t_quantile(degrees_of_freedom: int) -> float:
    """The 97.5 % quantile of Student's t, which widens a bootstrap interval of few values.

    By the Cornish-Fisher expansion, whose error is below 0.01 for 4 or more degrees of freedom.
    """
    z, v = Z_975, degrees_of_freedom
    return (
        z
        + (z**3 + z) / (4 * v)
        + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * v**2)
        + (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * v**3)
    )
