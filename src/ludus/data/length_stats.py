"""How long rows are, and how much of that training should allow.

Pure functions over how often each length came up.
"""

from __future__ import annotations

from collections.abc import Mapping

LENGTH_MARGIN = 16
LENGTH_MULTIPLE = 64


def quantile(counts: Mapping[int, int], share: float) -> int:
    """The smallest length that at least this share of the rows does not exceed."""
    wanted, so_far = share * sum(counts.values()), 0
    for length in sorted(counts):
        so_far += counts[length]
        if so_far >= wanted:
            return length
    return 0


def suggest_max_length(counts: Mapping[int, int]) -> int:
    """A length that cuts off one row in a hundred at most, and does not pay for the few longest.

    Never more than the longest row.
    """
    rounded = -(-(quantile(counts, 0.99) + LENGTH_MARGIN) // LENGTH_MULTIPLE) * LENGTH_MULTIPLE
    return min(rounded, max(counts, default=0))
