"""95 % confidence intervals of means: Student's t, corrected for skewness.

Rewards and token counts are skewed, so that a symmetric interval of few values misses the mean too
often. Hall's transformation (Hall, On the Removal of Skewness by Transformation, 1992) widens the
interval on the side of the long tail. It is a closed form: the same values give the same interval.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import cbrt, fsum, sqrt
from typing import NamedTuple

Z_975 = 1.959963984540054
"""The 97.5 % quantile of the normal distribution."""
MIN_SAMPLES = 5
"""With fewer values no interval is given: it would suggest more certainty than there is."""
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
    if n < MIN_SAMPLES or min(values) == max(values):
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
