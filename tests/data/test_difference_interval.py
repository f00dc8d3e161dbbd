"""The interval of a difference of means: coverage, and when there is none."""

from __future__ import annotations

from random import Random

import pytest

from ludus.data.interval_estimates import difference_interval


def test_an_interval_is_centered_on_the_difference() -> None:
    interval = difference_interval([0.0, 0.5, 0.5, 1.0, 0.5], [1.0, 1.5, 2.0, 1.5, 1.5])
    assert interval is not None and 0 < interval.low < 1 < interval.high
    assert (interval.low + interval.high) / 2 == pytest.approx(1.0)
    # As scipy.stats.ttest_ind(..., equal_var=False).confidence_interval() has it.
    assert interval.low == pytest.approx(0.48436, abs=2e-3)


def test_few_values_and_equal_values_have_no_interval() -> None:
    several = [0.0, 1.0, 0.0, 1.0, 1.0]
    assert difference_interval(several[:4], several) is None
    assert difference_interval(several, several[:4]) is None
    assert difference_interval([0.1] * 9, [0.7] * 9) is None
    assert difference_interval([0.0] * 9, several) is not None


@pytest.mark.parametrize("sizes", [(5, 5), (8, 40), (40, 40)])
def test_the_coverage_is_the_nominal_one(sizes: tuple[int, int]) -> None:
    rng, held = Random(0), 0
    for _ in range(800):
        before, after = ([rng.gauss(side, 1 + side) for _ in range(sizes[side])] for side in (0, 1))
        interval = difference_interval(before, after)
        assert interval is not None
        held += interval.low <= 1 <= interval.high
    assert 0.93 <= held / 800 <= 0.97
