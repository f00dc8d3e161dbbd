"""Score intervals: published examples, and what must hold for any counts."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ludus.data.interval_estimates import newcombe_interval, wilson_interval

COUNTS = st.integers(0, 60)


def near(low: float, high: float, by: float = 5e-4) -> Any:
    """An interval, to as many digits as were published."""
    return pytest.approx((low, high), abs=by)


@pytest.mark.parametrize(
    ("hits", "n", "low", "high"),
    [
        (81, 263, 0.2553, 0.3662),
        (15, 148, 0.0624, 0.1605),
        (0, 20, 0.0000, 0.1611),
        (1, 29, 0.0061, 0.1718),
    ],
)
def test_wilson_interval_matches_published_values(
    hits: int, n: int, low: float, high: float
) -> None:
    # Newcombe (1998), Two-sided confidence intervals for the single proportion, method 3.
    assert wilson_interval(hits, n) == near(low, high, 5e-5)


def test_newcombe_interval_matches_fagerland_et_al() -> None:
    # Bentur et al. (2009), in Fagerland, Lydersen and Laake (2014): -0.507 to -0.026.
    assert newcombe_interval(both=1, first=1, second=7, neither=12) == near(-0.507, -0.026)


def test_newcombe_interval_matches_altman_et_al() -> None:
    # Altman et al., Statistics with Confidence (2000), table 6.2: 0.011 to 0.226.
    assert newcombe_interval(both=14, first=5, second=0, neither=22) == near(0.011, 0.226)


@given(hits=COUNTS, misses=COUNTS)
def test_wilson_interval_contains_the_share(hits: int, misses: int) -> None:
    if hits + misses == 0:
        with pytest.raises(ValueError, match="positive"):
            wilson_interval(hits, 0)
        return
    low, high = wilson_interval(hits, hits + misses)
    assert 0.0 <= low <= hits / (hits + misses) <= high <= 1.0
    assert low < high


@given(st.tuples(COUNTS, COUNTS, COUNTS, COUNTS).filter(any))
def test_newcombe_interval_contains_the_difference_and_is_antisymmetric(
    counts: tuple[int, int, int, int],
) -> None:
    both, first, second, neither = counts
    low, high = newcombe_interval(both, first, second, neither)
    assert -1.0 <= low <= (first - second) / sum(counts) <= high <= 1.0
    turned = newcombe_interval(both, second, first, neither)
    assert (-turned.high, -turned.low) == near(low, high, 1e-9)


def test_more_tasks_narrow_the_interval() -> None:
    few, many = newcombe_interval(5, 4, 1, 10), newcombe_interval(50, 40, 10, 100)
    assert many.low > few.low and many.high < few.high
