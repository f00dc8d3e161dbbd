"""Verdicts: what is resolved, and how many episodes would resolve the rest."""

from __future__ import annotations

import random

import pytest

from evaluation.small_evaluations import attempt
from ludus.evaluation.metrics import Attempt, build_metrics, estimate_difference, pair_tasks
from ludus.evaluation.results import Outcome, Verdict, describe_verdict, judge_difference

ACCURACY = build_metrics(1.0)[2]


def judge(before: list[float], after: list[float], *, group_size: int = 1) -> Verdict:
    return judge_and_describe(before, after, group_size)[0]


def judge_and_describe(
    before: list[float], after: list[float], group_size: int = 1
) -> tuple[Verdict, str]:
    def played(rewards: list[float]) -> list[Attempt]:
        return [attempt(at, it, task=f"{at // group_size}") for at, it in enumerate(rewards)]

    base, other = played(before), played(after)
    difference = estimate_difference(ACCURACY, base, other)
    assert difference is not None
    verdict = judge_difference(difference, pair_tasks(ACCURACY, base, other))
    text = describe_verdict(verdict, difference, ACCURACY, label="sft", base="base")
    return verdict, text


def test_an_interval_without_zero_is_better_or_worse() -> None:
    low, high = [0.0] * 20 + [1.0] * 10, [1.0] * 25 + [0.0] * 5
    (better, text), worse = judge_and_describe(low, high), judge(high, low)
    assert (better.outcome, worse.outcome) == (Outcome.BETTER, Outcome.WORSE)
    assert better.episodes_needed is None and worse.episodes_needed is None
    assert "sft is better than base in accuracy" in text and "n = 30" in text


def test_a_small_difference_is_not_resolved_and_says_what_would_resolve_it() -> None:
    before, after = [0.0, 1.0] * 25, [1.0, 0.0, 0.0, 1.0] * 12 + [1.0, 1.0]
    verdict, text = judge_and_describe(before, after)
    assert verdict.outcome is Outcome.NOT_RESOLVED
    assert verdict.episodes_needed is not None and verdict.episodes_needed > 100
    assert "not resolved" in text and f"{verdict.episodes_needed:,} episodes" in text


def test_the_needed_number_resolves_the_difference_four_times_of_five() -> None:
    """Discordant tasks: 12 % only the first, 24 % only the second."""
    rng = random.Random(3)

    def draw(n: int) -> tuple[list[float], list[float]]:
        kinds = rng.choices([(0.0, 1.0), (1.0, 0.0), (1.0, 1.0)], [0.24, 0.12, 0.64], k=n)
        return [before for before, _ in kinds], [after for _, after in kinds]

    exact = [(0.0, 1.0)] * 12 + [(1.0, 0.0)] * 6 + [(1.0, 1.0)] * 32
    verdict = judge([before for before, _ in exact], [after for _, after in exact])
    assert verdict.outcome is Outcome.NOT_RESOLVED and verdict.episodes_needed is not None
    resolved = sum(
        judge(*draw(verdict.episodes_needed)).outcome is Outcome.BETTER for _ in range(300)
    )
    assert 0.74 <= resolved / 300 <= 0.88


def test_the_needed_number_counts_all_attempts_at_a_task() -> None:
    once = judge([0.0, 1.0] * 10, [1.0, 0.0] * 9 + [1.0, 1.0])
    twice = judge(
        [reward for reward in [0.0, 1.0] * 10 for _ in range(2)],
        [reward for reward in [1.0, 0.0] * 9 + [1.0, 1.0] for _ in range(2)],
        group_size=2,
    )
    assert once.episodes_needed is not None and twice.episodes_needed is not None
    assert twice.episodes_needed == pytest.approx(2 * once.episodes_needed, rel=0.1)


@pytest.mark.parametrize("rewards", [[0.0] * 20, [1.0, 0.0] * 10, [1.0, 0.0]])
def test_equal_results_need_no_number(rewards: list[float]) -> None:
    verdict, text = judge_and_describe(rewards, rewards)
    assert (verdict.outcome, verdict.episodes_needed) == (Outcome.NOT_RESOLVED, None)
    assert "episodes would" not in text
