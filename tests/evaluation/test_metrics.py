"""Metrics: what counts, and how candidates are compared."""

from __future__ import annotations

from itertools import combinations

import pytest

from evaluation.small_evaluations import attempt
from ludus.data.interval_estimates import (
    Interval,
    MeanEstimate,
    mean_interval,
    newcombe_interval,
    wilson_interval,
)
from ludus.evaluation.metrics import (
    Attempt,
    build_metrics,
    estimate_delta,
    estimate_metric,
    pass_at_k,
)

FORMAT, CUT_OFF, ACCURACY, REWARD, TOKENS = build_metrics(1.0)


def student(means: list[float]) -> Interval:
    """Return the interval of a mean, which must exist."""
    interval = mean_interval(means)
    assert interval is not None and interval.low < interval.high
    return interval


def attempts_with(*rewards: float | None) -> list[Attempt]:
    return [attempt(place, reward) for place, reward in enumerate(rewards)]


def test_accuracy_has_the_wilson_interval() -> None:
    result = estimate_metric(ACCURACY, attempts_with(1.0, 0.9, 0.0, 1.5))
    assert result == MeanEstimate(0.5, *wilson_interval(2, 4), 4)


def test_solved_at_is_the_reward_threshold() -> None:
    lenient = build_metrics(0.5)[2]
    result = estimate_metric(lenient, attempts_with(1.0, 0.5, 0.49))
    assert result is not None and result.value == pytest.approx(2 / 3)


def test_broken_attempts_are_excluded_and_unscored_count_for_format() -> None:
    broken = attempt(2, None, broken=True, format_compliant=False)
    unscored = attempt(3, None, format_compliant=False)
    attempts = [*attempts_with(1.0, 0.0), broken, unscored]
    counted = {
        metric.name: estimate_metric(metric, attempts) for metric in (FORMAT, ACCURACY, REWARD)
    }
    assert {
        name: (estimate_metric.value, estimate_metric.n)
        for name, estimate_metric in counted.items()
        if estimate_metric
    } == {
        "format_compliance": (pytest.approx(2 / 3), 3),
        "accuracy": (0.5, 2),
        "mean_reward": (0.5, 2),
    }


def test_no_values_give_no_estimate() -> None:
    assert estimate_metric(TOKENS, attempts_with(1.0)) is None
    assert estimate_delta(REWARD, attempts_with(1.0), attempts_with(None)) is None


def test_attempts_at_a_task_share_the_weight_of_one() -> None:
    often = [attempt(place, 0.0, task="hard") for place in range(8)]
    result = estimate_metric(ACCURACY, [*often, attempt(9, 1.0, task="easy")])
    assert result == MeanEstimate(0.5, *wilson_interval(1, 2), 9)


def test_difference_covers_common_tasks() -> None:
    base = [*attempts_with(1.0, 0.0, 0.0), attempt(7, 1.0), attempt(8, None, broken=True)]
    other = [*attempts_with(1.0, 1.0, 1.0), attempt(8, 0.0), attempt(9, 0.0)]
    result = estimate_delta(ACCURACY, base, other)
    assert result == MeanEstimate(2 / 3, *newcombe_interval(1, 2, 0, 0), 3)


def test_difference_of_means_is_paired() -> None:
    base = [attempt(place, float(place)) for place in range(20)]
    other = [attempt(place, place + 0.25 + place % 2 / 2) for place in range(20)]
    assert estimate_delta(REWARD, base, other) == MeanEstimate(0.5, *student([0.25, 0.75] * 10), 20)


def test_equal_rewards_between_0_and_1_have_no_interval() -> None:
    result = estimate_metric(REWARD, attempts_with(0.5, 0.5, 0.5, 0.5))
    assert result == MeanEstimate(0.5, None, None, 4)
    gain = estimate_delta(
        REWARD, attempts_with(0.0, 0.0, 0.0, 0.0), attempts_with(0.5, 0.5, 0.5, 0.5)
    )
    assert gain == MeanEstimate(0.5, None, None, 4)


def test_rewards_of_0_and_1_have_the_intervals_of_shares() -> None:
    few = attempts_with(1.0, 1.0, *[0.0] * 8)
    assert estimate_metric(REWARD, few) == MeanEstimate(0.2, *wilson_interval(2, 10), 10)
    none, all_ = attempts_with(*[0.0] * 20), attempts_with(*[1.0] * 20)
    gain = estimate_delta(REWARD, none, all_)
    assert gain is not None and gain.low is not None and 0.5 < gain.low < gain.value == 1.0


def test_cut_off_attempts_do_not_count_for_format() -> None:
    cut = [attempt(place, 0.0, format_compliant=None, cut_off=True) for place in range(3)]
    attempts = [*cut, attempt(3), attempt(4, format_compliant=False)]
    known, share = estimate_metric(FORMAT, attempts), estimate_metric(CUT_OFF, attempts)
    assert known is not None and (known.value, known.n) == (0.5, 2)
    assert share is not None and (round(share.value, 12), share.n) == (0.6, 5)


def test_pairs_at_a_task_share_the_weight_of_one() -> None:
    base = [attempt(0, 0.0, task="a"), attempt(1, 0.0, task="a"), attempt(2, 1.0, task="b")]
    other = [attempt(0, 1.0, task="a"), attempt(1, 0.0, task="a"), attempt(2, 1.0, task="b")]
    result = estimate_delta(ACCURACY, base, other)
    assert result == MeanEstimate(0.25, *newcombe_interval(1, 0.5, 0, 0.5), 3)


def grouped(*tasks: tuple[float, ...]) -> list[Attempt]:
    """Several attempts at each task, by their rewards."""
    rewards = [(f"task {at}", reward) for at, task in enumerate(tasks) for reward in task]
    return [attempt(place, reward, task=task) for place, (task, reward) in enumerate(rewards)]


def test_mixed_outcomes_have_the_interval_of_their_effective_number() -> None:
    even, odd = grouped(*[(0.0, 1.0)] * 30, *[(1.0, 1.0)] * 10), grouped(*[(1.0, 1.0)] * 40)
    share = estimate_metric(ACCURACY, even)
    assert share is not None and (share.value, share.n) == (0.625, 80)
    assert share.low is not None and share.high is not None
    tasks, attempts = wilson_interval(25, 40), wilson_interval(50, 80)
    assert tasks.low < share.low < attempts.low * 1.01
    assert attempts.high * 0.99 < share.high < tasks.high
    gain = estimate_delta(ACCURACY, even, odd)
    assert gain == MeanEstimate(0.375, *student([0.5] * 30 + [0.0] * 10), 80)


def test_uniform_tasks_use_the_score_interval() -> None:
    base, other = grouped((0.0, 0.0), (1.0, 1.0)), grouped((1.0, 1.0), (1.0, 1.0))
    assert estimate_metric(ACCURACY, other) == MeanEstimate(1.0, *wilson_interval(2, 2), 4), (
        "not 100 to 100"
    )
    assert estimate_delta(ACCURACY, base, other) == MeanEstimate(
        0.5, *newcombe_interval(1, 1, 0, 0), 4
    )


def test_equal_task_shares_use_the_score_interval() -> None:
    assert estimate_metric(ACCURACY, grouped((0.0, 1.0), (1.0, 0.0))) == MeanEstimate(
        0.5, *wilson_interval(1, 2), 4
    )


@pytest.mark.parametrize("outcomes", ["1", "0", "10", "0000", "1111", "0100", "110100", "00000001"])
def test_pass_at_k_agrees_with_all_subsets(outcomes: str) -> None:
    values = [float(each) for each in outcomes]
    for k in range(1, len(values) + 1):
        subsets = list(combinations(values, k))
        share = sum(any(subset) for subset in subsets) / len(subsets)
        assert pass_at_k(values, k) == pytest.approx(share), k
    assert pass_at_k(values, len(values) + 1) is None


def test_pass_at_k_is_a_mean_over_tasks_with_enough_attempts() -> None:
    metric = next(each for each in build_metrics(1.0, pass_k=[2]) if each.name == "pass@2")
    tasks = grouped((1.0, 0.0, 0.0), (0.0, 0.0, 0.0), (1.0,))
    result = estimate_metric(metric, tasks)
    assert result is not None and result.value == pytest.approx(1 / 3) and result.n == 6
    other = grouped((1.0, 1.0, 0.0), (0.0, 0.0, 0.0), (1.0,))
    gain = estimate_delta(metric, tasks, other)
    assert gain is not None and gain.value == pytest.approx(1 / 6) and gain.n == 6
