"""Means over tasks: weights, intervals, and rewards of any size."""

from __future__ import annotations

import pytest

from ludus.data.interval_estimates import TaskRewards, format_mean, wilson_interval


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


@pytest.mark.parametrize("scale", [1e200, 1e-200])
def test_rewards_of_any_size_have_a_mean(scale: float) -> None:
    values = [0.5, 0.25, 0.0, 0.125, 0.75, 0.25]
    found = rewards_of(*((str(at), scale * value) for at, value in enumerate(values))).estimate()
    assert found is not None and found.interval is None
    assert found.value / scale == pytest.approx(1.875 / 6)


def test_equal_rewards_have_no_interval_whatever_rounding_does() -> None:
    found = rewards_of(*((str(at % 6), 0.1) for at in range(21))).estimate()
    assert found is not None and found.interval is None and found.value == pytest.approx(0.1)


def test_a_mean_is_printed_with_its_interval() -> None:
    assert format_mean(0.35, [0.281, 0.42]) == "0.350 (0.281 to 0.420)"
    assert format_mean(1.0, None) == "1.000"
