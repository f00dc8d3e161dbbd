"""Metrics: what counts, and how candidates are compared."""

from __future__ import annotations

import pytest

from evaluation.small_evaluations import attempt
from ludus.data.bootstrap import Interval, bootstrap_interval
from ludus.evaluation.attempts import Attempt
from ludus.evaluation.metrics import MetricEstimate, build_metrics, estimate, estimate_difference
from ludus.evaluation.score_intervals import newcombe_interval, wilson_interval

FORMAT, CUT_OFF, ACCURACY, REWARD, TOKENS = build_metrics(1.0)


def bootstrap(means: list[float]) -> Interval:
    """Return the bootstrap interval, which must exist."""
    interval = bootstrap_interval(means)
    assert interval is not None and interval.low < interval.high
    return interval


def attempts_with(*rewards: float | None) -> list[Attempt]:
    return [attempt(place, reward) for place, reward in enumerate(rewards)]


def test_accuracy_has_the_wilson_interval() -> None:
    result = estimate(ACCURACY, attempts_with(1.0, 0.9, 0.0, 1.5))
    assert result == MetricEstimate(0.5, *wilson_interval(2, 4), 4)


def test_solved_at_is_the_reward_threshold() -> None:
    lenient = build_metrics(0.5)[2]
    result = estimate(lenient, attempts_with(1.0, 0.5, 0.49))
    assert result is not None and result.value == pytest.approx(2 / 3)


def test_broken_attempts_are_excluded_and_unscored_count_for_format() -> None:
    broken = attempt(2, None, broken=True, format_compliant=False)
    unscored = attempt(3, None, format_compliant=False)
    attempts = [*attempts_with(1.0, 0.0), broken, unscored]
    counted = {metric.name: estimate(metric, attempts) for metric in (FORMAT, ACCURACY, REWARD)}
    assert {
        name: (estimate.value, estimate.n) for name, estimate in counted.items() if estimate
    } == {
        "format_compliance": (pytest.approx(2 / 3), 3),
        "accuracy": (0.5, 2),
        "mean_reward": (0.5, 2),
    }


def test_no_values_give_no_estimate() -> None:
    assert estimate(TOKENS, attempts_with(1.0)) is None
    assert estimate_difference(REWARD, attempts_with(1.0), attempts_with(None)) is None


def test_attempts_at_a_task_share_the_weight_of_one() -> None:
    often = [attempt(place, 0.0, task="hard") for place in range(8)]
    result = estimate(ACCURACY, [*often, attempt(9, 1.0, task="easy")])
    assert result == MetricEstimate(0.5, *wilson_interval(1, 2), 9)


def test_difference_covers_common_tasks() -> None:
    base = [*attempts_with(1.0, 0.0, 0.0), attempt(7, 1.0), attempt(8, None, broken=True)]
    other = [*attempts_with(1.0, 1.0, 1.0), attempt(8, 0.0), attempt(9, 0.0)]
    result = estimate_difference(ACCURACY, base, other)
    assert result == MetricEstimate(2 / 3, *newcombe_interval(1, 2, 0, 0), 3)


def test_difference_of_means_is_paired() -> None:
    base = [attempt(place, float(place)) for place in range(20)]
    other = [attempt(place, place + 0.25 + place % 2 / 2) for place in range(20)]
    assert estimate_difference(REWARD, base, other) == MetricEstimate(
        0.5, *bootstrap([0.25, 0.75] * 10), 20
    )


def test_equal_rewards_have_no_interval() -> None:
    result = estimate(REWARD, attempts_with(1.0, 1.0, 1.0, 1.0))
    assert result == MetricEstimate(1.0, None, None, 4)
    gain = estimate_difference(
        REWARD, attempts_with(0.0, 0.0, 0.0, 0.0), attempts_with(1.0, 1.0, 1.0, 1.0)
    )
    assert gain == MetricEstimate(1.0, None, None, 4)


def test_cut_off_attempts_do_not_count_for_format() -> None:
    cut = [attempt(place, 0.0, format_compliant=None, cut_off=True) for place in range(3)]
    attempts = [*cut, attempt(3), attempt(4, format_compliant=False)]
    known, share = estimate(FORMAT, attempts), estimate(CUT_OFF, attempts)
    assert known is not None and (known.value, known.n) == (0.5, 2)
    assert share is not None and (share.value, share.n) == (0.6, 5)


def test_pairs_at_a_task_share_the_weight_of_one() -> None:
    base = [attempt(0, 0.0, task="a"), attempt(1, 0.0, task="a"), attempt(2, 1.0, task="b")]
    other = [attempt(0, 1.0, task="a"), attempt(1, 0.0, task="a"), attempt(2, 1.0, task="b")]
    result = estimate_difference(ACCURACY, base, other)
    assert result == MetricEstimate(0.25, *newcombe_interval(1, 0.5, 0, 0.5), 3)


def grouped(*tasks: tuple[float, ...]) -> list[Attempt]:
    """Several attempts at each task, by their rewards."""
    rewards = [(f"task {at}", reward) for at, task in enumerate(tasks) for reward in task]
    return [attempt(place, reward, task=task) for place, (task, reward) in enumerate(rewards)]


def test_mixed_outcomes_use_the_bootstrap_over_tasks() -> None:
    even, odd = grouped(*[(0.0, 1.0)] * 30, *[(1.0, 1.0)] * 10), grouped(*[(1.0, 1.0)] * 40)
    share = estimate(ACCURACY, even)
    assert share == MetricEstimate(0.625, *bootstrap([0.5] * 30 + [1.0] * 10), 80)
    low, high = wilson_interval(25, 40)
    assert share.low is not None and share.high is not None
    assert low < share.low and share.high < high, "as coins of one toss they would differ more"
    gain = estimate_difference(ACCURACY, even, odd)
    assert gain == MetricEstimate(0.375, *bootstrap([0.5] * 30 + [0.0] * 10), 80)


def test_uniform_tasks_use_the_score_interval() -> None:
    base, other = grouped((0.0, 0.0), (1.0, 1.0)), grouped((1.0, 1.0), (1.0, 1.0))
    assert estimate(ACCURACY, other) == MetricEstimate(1.0, *wilson_interval(2, 2), 4), (
        "not 100 to 100"
    )
    assert estimate_difference(ACCURACY, base, other) == MetricEstimate(
        0.5, *newcombe_interval(1, 1, 0, 0), 4
    )


def test_equal_task_shares_use_the_score_interval() -> None:
    assert estimate(ACCURACY, grouped((0.0, 1.0), (1.0, 0.0))) == MetricEstimate(
        0.5, *wilson_interval(1, 2), 4
    )
