"""Verdicts: what is better, worse, or not resolved."""

from __future__ import annotations

import pytest

from evaluation.small_evaluations import attempt
from ludus.evaluation.metrics import Attempt, build_metrics, estimate_delta, pair_tasks
from ludus.evaluation.results import Outcome, describe_verdict, judge_difference

ACCURACY = build_metrics(1.0)[2]


def judge_and_describe(before: list[float], after: list[float]) -> tuple[Outcome, str]:
    def played(rewards: list[float]) -> list[Attempt]:
        return [attempt(at, it, task=f"{at}") for at, it in enumerate(rewards)]

    base, other = played(before), played(after)
    difference = estimate_delta(ACCURACY, base, other)
    assert difference is not None
    verdict = judge_difference(difference, len(pair_tasks(ACCURACY, base, other)))
    text = describe_verdict(verdict, difference, ACCURACY, label="sft", base="base")
    return verdict, text


def test_an_interval_without_zero_is_better_or_worse() -> None:
    low, high = [0.0] * 20 + [1.0] * 10, [1.0] * 25 + [0.0] * 5
    (better, text), (worse, _) = judge_and_describe(low, high), judge_and_describe(high, low)
    assert (better, worse) == (Outcome.BETTER, Outcome.WORSE)
    assert "sft is better than base in accuracy" in text and "n = 30" in text


def test_a_small_difference_is_not_resolved() -> None:
    before, after = [0.0, 1.0] * 25, [1.0, 0.0, 0.0, 1.0] * 12 + [1.0, 1.0]
    verdict, text = judge_and_describe(before, after)
    assert verdict is Outcome.NOT_RESOLVED and "not resolved" in text


@pytest.mark.parametrize("rewards", [[0.0] * 20, [1.0, 0.0] * 10, [1.0, 0.0]])
def test_equal_results_are_not_resolved(rewards: list[float]) -> None:
    assert judge_and_describe(rewards, rewards)[0] is Outcome.NOT_RESOLVED
