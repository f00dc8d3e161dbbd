"""Intervals: published examples, and what must hold for any counts."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ludus.data.bootstrap import t_quantile
from ludus.evaluation.intervals import bootstrap_interval, newcombe_interval, wilson_interval

COUNTS = st.integers(0, 60)


def differ(values: list[float]) -> bool:
    return min(values) < max(values)


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


@given(st.lists(st.floats(-10, 10), min_size=5, max_size=20).filter(differ), st.integers(0, 3))
def test_bootstrap_interval_contains_the_mean_and_is_deterministic(
    values: list[float], seed: int
) -> None:
    interval = bootstrap_interval(values, seed=seed)
    assert interval is not None and interval == bootstrap_interval(values, seed=seed)
    mean = sum(values) / len(values)
    assert min(values) - 1e-9 <= interval.low <= mean <= interval.high <= max(values) + 1e-9


def test_bootstrap_margin_is_about_two_standard_errors() -> None:
    values = [0.0, 1.0] * 200
    assert bootstrap_interval(values) == near(0.5 - 0.049, 0.5 + 0.049, 0.006)


def test_many_values_use_the_normal_interval() -> None:
    few, many = [0.0, 1.0, 1.0, 5.0] * 2_500, [0.0, 1.0, 1.0, 5.0] * 2_501
    assert bootstrap_interval(many) == bootstrap_interval(many, seed=1) and bootstrap_interval(
        few
    ) != bootstrap_interval(few, seed=1)
    assert bootstrap_interval(many) == pytest.approx(bootstrap_interval(few), abs=0.006)


@pytest.mark.parametrize(
    "values", [[0.5], [0.0, 1.0, 0.0, 1.0], [1.0] * 4, [1.0] * 200], ids=["one", "four", "", "same"]
)
def test_few_or_equal_values_have_no_interval(values: list[float]) -> None:
    assert bootstrap_interval(values) is None


def test_t_quantiles_match_tables() -> None:
    quantiles = [t_quantile(freedom) for freedom in (4, 9, 29, 1000)]
    assert quantiles == pytest.approx([2.776, 2.262, 2.045, 1.962], abs=0.01)


def test_bootstrap_of_few_values_has_its_nominal_coverage() -> None:
    """A plain percentile bootstrap of five values holds the mean 83 times of 100."""
    chance = random.Random(0)
    for n, least in ((5, 0.87), (10, 0.91), (30, 0.92)):
        interval = [bootstrap_interval([chance.gauss(0, 1) for _ in range(n)]) for _ in range(200)]
        held = sum(each is not None and each.low <= 0 <= each.high for each in interval)
        assert held / 200 >= least, n
