"""95 % intervals: for shares, for means, and for the difference of two that were paired.

Pure functions of numbers. Counts may be fractions: where a task was tried several times, its
attempts share the weight of one, because they are no independent evidence.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from math import fsum, sqrt
from statistics import fmean
from typing import NamedTuple

from ludus.data.bootstrap import MIN_SAMPLES, Z_975, tail_fraction

_MAX_BOOTSTRAP_DRAWS = 2_000_000
"""Numbers that a bootstrap may draw in all: less than a second's work."""
_MAX_ROUNDS, _MIN_ROUNDS = 2_000, 200
"""Rounds; of more values than can be drawn so often the mean is as good as normal."""


class Interval(NamedTuple):
    low: float
    high: float


def wilson_interval(hits: float, n: float) -> Interval:
    """Wilson's score interval for a share: it holds near 0 and 1, and for small samples."""
    if n <= 0:
        raise ValueError("A share of nothing has no interval.")
    share, square = hits / n, Z_975 * Z_975 / n
    middle = (share + square / 2) / (1 + square)
    reach = Z_975 * sqrt(max(0.0, share * (1 - share)) / n + square / (4 * n)) / (1 + square)
    return Interval(max(0.0, min(share, middle - reach)), min(1.0, max(share, middle + reach)))


def newcombe_interval(both: float, first: float, second: float, neither: float) -> Interval:
    """Newcombe's score interval (his method 10) for one share less another, of the same tasks.

    The counts are of tasks that both solved, that only the first or only the second solved, and
    that neither did.
    """
    n = both + first + second + neither
    one, other = both + first, both + second
    p, q = one / n, other / n
    (p_low, p_high), (q_low, q_high) = wilson_interval(one, n), wilson_interval(other, n)
    phi = _phi_coefficient(both, first, second, neither)
    below = _combine_margins(p - p_low, q_high - q, phi)
    above = _combine_margins(p_high - p, q - q_low, phi)
    return Interval(max(-1.0, p - q - below), min(1.0, p - q + above))


def _combine_margins(one: float, other: float, phi: float) -> float:
    return sqrt(max(0.0, one * one - 2 * phi * one * other + other * other))


def _phi_coefficient(both: float, first: float, second: float, neither: float) -> float:
    """Phi with Newcombe's continuity correction, which only ever makes it smaller."""
    n = both + first + second + neither
    margins = (both + first) * (second + neither) * (both + second) * (first + neither)
    if margins <= 0:
        return 0.0
    product = both * neither - first * second
    corrected = max(0.0, product - n / 2) if product > 0 else product
    return max(-1.0, min(1.0, corrected / sqrt(margins)))


def bootstrap_interval(values: Sequence[float], *, seed: int = 0) -> Interval | None:
    """The expanded percentile interval of a mean; the same values give the same.

    None for fewer than `FEWEST` values, and for values that are all equal: drawn again they are
    still equal, which would look like certainty. Of more than 10,000 values it is the normal one,
    which then differs by less than chance does.
    """
    n = len(values)
    if n < MIN_SAMPLES or min(values) == max(values):
        return None
    if n > _MAX_BOOTSTRAP_DRAWS // _MIN_ROUNDS:
        return _normal_interval(values)
    chance, rounds = (
        random.Random(seed),
        max(_MIN_ROUNDS, min(_MAX_ROUNDS, _MAX_BOOTSTRAP_DRAWS // n)),
    )
    means = sorted(sum(chance.choices(values, k=n)) / n for _ in range(rounds))
    mean, cut = sum(values) / n, round(tail_fraction(n) * rounds)
    return Interval(min(mean, means[cut]), max(mean, means[rounds - 1 - cut]))


def _normal_interval(values: Sequence[float]) -> Interval:
    mean, n = fmean(values), len(values)
    reach = Z_975 * sqrt(fsum((value - mean) ** 2 for value in values) / (n - 1) / n)
    return Interval(mean - reach, mean + reach)
