"""Score intervals: 95 % confidence intervals of shares, and of differences of paired shares.

Pure functions. Counts may be fractions: the attempts at one task share the weight of one, because
they are not independent.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import sqrt

from ludus.data.bootstrap import Z_975, Interval


def wilson_interval(hits: float, n: float) -> Interval:
    """Return Wilson's score interval of a share, which is valid near 0 and 1 and for small n."""
    if n <= 0:
        raise ValueError(f"n must be positive, got {n}")
    share, z2_n = hits / n, Z_975 * Z_975 / n
    center = (share + z2_n / 2) / (1 + z2_n)
    margin = Z_975 * sqrt(max(0.0, share * (1 - share)) / n + z2_n / (4 * n)) / (1 + z2_n)
    return Interval(max(0.0, min(share, center - margin)), min(1.0, max(share, center + margin)))


def newcombe_interval(both: float, first: float, second: float, neither: float) -> Interval:
    """Return Newcombe's score interval (method 10) of a difference of paired shares.

    The counts are of tasks that both solved, only the first, only the second, and neither. The
    difference is that of the first minus the second.
    """
    n = both + first + second + neither
    p, q = (both + first) / n, (both + second) / n
    p_low, p_high = wilson_interval(both + first, n)
    q_low, q_high = wilson_interval(both + second, n)
    phi = _phi_coefficient(both, first, second, neither)
    below = _combine_margins(p - p_low, q_high - q, phi)
    above = _combine_margins(p_high - p, q - q_low, phi)
    return Interval(max(-1.0, p - q - below), min(1.0, p - q + above))


def _combine_margins(one: float, other: float, phi: float) -> float:
    return sqrt(max(0.0, one * one - 2 * phi * one * other + other * other))


def _phi_coefficient(both: float, first: float, second: float, neither: float) -> float:
    """Return phi with Newcombe's continuity correction, which can only shrink it."""
    n = both + first + second + neither
    margins = (both + first) * (second + neither) * (both + second) * (first + neither)
    if margins <= 0:
        return 0.0
    product = both * neither - first * second
    corrected = max(0.0, product - n / 2) if product > 0 else product
    return max(-1.0, min(1.0, corrected / sqrt(margins)))


def score_interval_applies(tasks: Iterable[Sequence[object]], means: Sequence[float]) -> bool:
    """Whether each task is a hit or a miss as a whole, so that a score interval applies.

    Where attempts at one task had different outcomes, its mean is not a count, and a bootstrap over
    tasks is used. If all means are equal, there is nothing to resample, and the score interval,
    which accounts for the number of tasks, is better.
    """
    is_uniform = all(len(set(attempts)) == 1 for attempts in tasks)
    return is_uniform or len(set(means)) == 1
