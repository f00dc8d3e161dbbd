"""How many episodes a comparison needs, before any is played."""

from __future__ import annotations

from math import ceil, sqrt
from statistics import NormalDist

CONFIDENCE, POWER = 0.95, 0.8
_MAX_VARIANCE = 0.5
"""Of the difference of two shares on one task: at most 1/4 from each candidate, where their
successes are independent. Candidates that solve the same tasks need fewer episodes."""
_QUANTILES = NormalDist().inv_cdf((1 + CONFIDENCE) / 2) + NormalDist().inv_cdf(POWER)


def episodes_to_detect(effect: float) -> int:
    """Episodes per candidate to show a difference of `effect` between two shares.

    With this number, in at least 80 % of evaluations the 95 % interval of the difference does not
    contain zero.
    """
    return ceil(_QUANTILES**2 * _MAX_VARIANCE / effect**2)


def detectable_effect(episodes: int) -> float:
    """The smallest difference between two shares that so many episodes are enough for."""
    return min(1.0, _QUANTILES * sqrt(_MAX_VARIANCE / episodes))
