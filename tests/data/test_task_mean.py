"""Means over tasks: weights, intervals, and rewards of any size."""

from __future__ import annotations

from sys import float_info

import pytest

from ludus.data.estimates import TaskRewards, format_mean, mean_interval, wilson_interval


def rewards_of(*pairs: tuple[str, float]) -> TaskRewards:
    rewards = TaskRewards()
    for task, reward in pairs:
        rewards.add(task, reward)
    return rewards


def test_each_task_has_the_same_weight_while_rewards_are_added() -> None:
    rewards = rewards_of(("a", 0.0), ("b", 0.25), ("a", 0.0), ("a", 0.75))
    assert rewards.mean == pytest.approx(0.25) and rewards.n == 4
    assert (found := rewards.estimate()) is not None and found.value == pytest.approx(0.25)
    assert found.interval is None, "too few tasks"


def test_rewards_of_0_and_1_are_a_share() -> None:
    found = rewards_of(("a", 1.0), ("b", 0.0), ("c", 0.0)).estimate()
    assert found is not None and found.interval == list(wilson_interval(1, 3))


@pytest.mark.parametrize("scale", [1.0, 1e-200, -3e200])
def test_rewards_of_any_size_have_an_interval(scale: float) -> None:
    values = [0.5, 0.25, 0.0, 0.125, 0.75, 0.25]
    found = rewards_of(*((str(at), scale * value) for at, value in enumerate(values))).estimate()
    expected = mean_interval(values)
    assert found is not None and found.interval is not None and expected is not None
    assert [end / scale for end in sorted(found.interval)] == pytest.approx(
        sorted(expected, reverse=scale < 0)
    )


def test_an_interval_ends_at_the_largest_float() -> None:
    found = rewards_of(
        *zip("abcdef", (1.7e308, -1e308, 0.0, 0.0, 0.0, 0.5), strict=True)
    ).estimate()
    assert found is not None and found.high == float_info.max
    assert found.low is not None and -1.7e308 < found.low < 0


def test_equal_rewards_have_no_interval_whatever_rounding_does() -> None:
    found = rewards_of(*((str(at % 6), 0.1) for at in range(21))).estimate()
    assert found is not None and found.interval is None and found.value == pytest.approx(0.1)


def test_a_mean_is_printed_with_its_interval() -> None:
    assert format_mean(0.35, [0.281, 0.42]) == "0.350 (0.281 to 0.420)"
    assert format_mean(1.0, None) == "1.000"
