"""Bootstrap confidence intervals of any statistic: the expanded percentile interval.

A percentile bootstrap of n values is too narrow by sqrt((n - 1) / n), and by the difference between
Student's t and the normal distribution. The expanded percentile interval corrects for both by more
extreme percentiles (Hesterberg, What Teachers Should Know About the Bootstrap, 2015).
"""

from __future__ import annotations

from collections.abc import Callable
from math import sqrt
from random import Random
from statistics import NormalDist

from ludus.data.intervals import Interval, student_t_quantile


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
