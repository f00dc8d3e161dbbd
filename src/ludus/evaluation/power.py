"""How many tasks a comparison needs to show a difference."""

from __future__ import annotations

from math import ceil, sqrt
from statistics import NormalDist

from ludus.data.intervals import Z_975

POWER = 0.8
"""Probability with which so many tasks resolve a difference of the given size."""
_QUANTILES = Z_975 + NormalDist().inv_cdf(POWER)
_MAX_VARIANCE = 0.5
"""Of the difference of two shares on one task: at most 1/4 from each candidate, where their
successes are independent. Candidates that solve the same tasks need fewer episodes."""


def tasks_to_detect(effect: float, variance: float) -> float:
    """Tasks with which the 95 % interval of a difference of `effect` probably excludes zero.

    `variance` is that of the difference on one task.
    """
    return _QUANTILES**2 * variance / effect**2


def episodes_to_detect(effect: float) -> int:
    """Episodes per candidate to show a difference of two shares, before any is played."""
    return ceil(tasks_to_detect(effect, _MAX_VARIANCE))


def detectable_effect(episodes: int) -> float:
    """The smallest difference of two shares that so many episodes are enough for."""
    return min(1.0, _QUANTILES * sqrt(_MAX_VARIANCE / episodes))
