"""A curve as one line of text."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from statistics import fmean

_BLOCKS = "▁▂▃▄▅▆▇█"


def sparkline(
    values: Sequence[float],
    *,
    low: float | None = None,
    high: float | None = None,
    width: int = 40,
) -> str:
    """A curve as one line of block characters; several values are averaged into one block.

    Scaled to the given range, or to that of the values. Empty for a single value without a range.
    """
    if len(values) < (2 if low is None else 1):
        return ""
    size = min(width, len(values))
    edges = [number * len(values) // size for number in range(size + 1)]
    means = [fmean(values[start:end]) for start, end in pairwise(edges)]
    low, high = min(means) if low is None else low, max(means) if high is None else high
    top, span = len(_BLOCKS) - 1, (high - low) or 1.0
    return "".join(_BLOCKS[min(top, max(0, round(top * (mean - low) / span)))] for mean in means)
