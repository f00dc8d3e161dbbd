"""95 % confidence intervals of differences of paired shares. Pure functions."""

from __future__ import annotations

from collections.abc import Sequence
from math import fsum, sqrt

from ludus.data.intervals import Interval, is_binary, mean_interval, wilson_interval


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
