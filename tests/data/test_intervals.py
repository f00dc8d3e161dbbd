"""Intervals of means: what must hold for any values. Coverage is simulated for evaluations."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ludus.data.interval_estimates import mean_interval, student_t_quantile


def differ(values: list[float]) -> bool:
    return max(values) - min(values) > 1e-6


@settings(deadline=None)
@given(st.lists(st.floats(-10, 10), min_size=5, max_size=20).filter(differ))
def test_interval_contains_the_mean_and_turns_with_the_values(values: list[float]) -> None:
    interval = mean_interval(values)
    assert interval is not None
    assert interval.low <= sum(values) / len(values) <= interval.high
    turned = mean_interval([-value for value in values])
    assert turned is not None
    assert (-turned.high, -turned.low) == pytest.approx(interval, abs=1e-6)


def test_symmetric_values_have_the_interval_of_students_t() -> None:
    # scipy.stats.t.interval(0.95, 7, 0, sem): the deviation is sqrt(6), and t is 2.3646.
    values = [-3.0, -3.0, -1.0, -1.0, 1.0, 1.0, 3.0, 3.0]
    assert mean_interval(values) == pytest.approx((-1.9982, 1.9982), abs=1e-3)


def test_the_side_of_the_long_tail_is_wider() -> None:
    interval = mean_interval([0.0] * 18 + [1.0, 1.0])
    assert interval is not None and interval.high - 0.1 > 1.5 * (0.1 - interval.low)


@pytest.mark.parametrize(
    "values", [[0.5], [0.0, 1.0, 0.0, 1.0], [1.0] * 4, [1.0] * 200], ids=["one", "four", "", "same"]
)
def test_few_or_equal_values_have_no_interval(values: list[float]) -> None:
    assert mean_interval(values) is None


def test_t_quantiles_match_tables() -> None:
    quantiles = [student_t_quantile(freedom) for freedom in (4, 9, 29, 1000)]
    assert quantiles == pytest.approx([2.776, 2.262, 2.045, 1.962], abs=0.01)
