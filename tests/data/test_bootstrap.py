"""Bootstrap intervals: coverage, and what must hold for any values."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ludus.data.bootstrap import bootstrap_interval, student_t_quantile


def differ(values: list[float]) -> bool:
    return min(values) < max(values)


@settings(deadline=None)
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
    assert bootstrap_interval(values) == pytest.approx((0.5 - 0.049, 0.5 + 0.049), abs=0.006)


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
    quantiles = [student_t_quantile(freedom) for freedom in (4, 9, 29, 1000)]
    assert quantiles == pytest.approx([2.776, 2.262, 2.045, 1.962], abs=0.01)


def test_bootstrap_of_few_values_has_its_nominal_coverage() -> None:
    """A plain percentile bootstrap of five values holds the mean 83 times of 100."""
    chance = random.Random(0)
    for n, least in ((5, 0.87), (10, 0.91), (30, 0.92)):
        interval = [bootstrap_interval([chance.gauss(0, 1) for _ in range(n)]) for _ in range(200)]
        held = sum(each is not None and each.low <= 0 <= each.high for each in interval)
        assert held / 200 >= least, n
