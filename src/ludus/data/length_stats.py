"""Quantiles of row lengths, and a maximum length for training; from counts per length."""

from __future__ import annotations

from collections.abc import Mapping

LENGTH_MARGIN = 16
LENGTH_MULTIPLE = 64


def quantile(counts: Mapping[int, int], share: float) -> int:
    """The smallest length that at least this share of the rows does not exceed."""
    target, cumulative = share * sum(counts.values()), 0
    for length in sorted(counts):
        cumulative += counts[length]
        if cumulative >= target:
            return length
    return 0


def suggest_max_length(counts: Mapping[int, int]) -> int:
    """A maximum length that truncates at most 1 % of the rows, rounded up.

    It ignores the few longest rows, for which all others would be padded, and never exceeds the
    longest row.
    """
    rounded = -(-(quantile(counts, 0.99) + LENGTH_MARGIN) // LENGTH_MULTIPLE) * LENGTH_MULTIPLE
    return min(rounded, max(counts, default=0))
