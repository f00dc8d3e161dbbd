"""Score intervals: 95 % confidence intervals of shares, and of differences of paired shares.

Pure functions. The attempts at one task are not independent: they are a cluster. Where they differ,
the interval of a share is that of an effective number of tasks, which lies between the number of
tasks and the number of attempts (Franco et al., Comparative Study of Confidence Intervals for
Proportions in Complex Sample Surveys, 2019).
"""

from __future__ import annotations

from collections.abc import Sequence
from math import fsum, sqrt

from ludus.data.intervals import MIN_SAMPLES, Z_975, Interval, mean_interval, student_t_quantile


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


def is_binary(shares: Sequence[float]) -> bool:
    """Whether each task is a hit or a miss as a whole, so that they can be counted."""
    return all(share in (0.0, 1.0) for share in shares)


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
