"""Where a bootstrap cuts its draws for a 95 % interval, so that few values give a wide one.

A percentile bootstrap of n values is too narrow by sqrt((n - 1) / n), and by what Student's t
differs from the normal distribution. Both are made good by cutting further out: the expanded
percentile interval (Hesterberg, What Teachers Should Know About the Bootstrap, 2015).
"""

from __future__ import annotations

from math import sqrt
from statistics import NormalDist

Z_975 = 1.959963984540054
"""Between -Z and Z lie 95 % of a normal distribution."""
MIN_SAMPLES = 5
"""Values below which no interval of a mean is given: any would seem surer than it is."""


def tail_fraction(n: int) -> float:
    """The share of draws to cut off at either side for an interval of the mean of n values."""
    return NormalDist().cdf(-sqrt(n / (n - 1)) * t_quantile(n - 1))


def t_quantile(degrees_of_freedom: int) -> float:
    """The 97.5 % quantile of Student's t: Fisher and Cornish's expansion about the normal one.

    Off by less than 0.01 from 4 degrees of freedom on.
    """
    z, v = Z_975, degrees_of_freedom
    return (
        z
        + (z**3 + z) / (4 * v)
        + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * v**2)
        + (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * v**3)
    )
