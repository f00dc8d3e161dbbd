"""95 % intervals of means over few values, such as one for each seed, by Student's t."""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt
from statistics import stdev

_QUANTILES = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)
"""97.5 % quantiles, by degrees of freedom from 1 on."""


def interval_half_width(values: Sequence[float]) -> float:
    """Half the width of the interval of the mean of two or more values."""
    degrees = len(values) - 1
    if degrees <= len(_QUANTILES):
        quantile = _QUANTILES[degrees - 1]
    else:
        quantile = 1.960 + 2.372 / degrees + 2.822 / degrees**2
    return quantile * stdev(values) / sqrt(len(values))
