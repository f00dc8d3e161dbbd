"""Paired rewards: the model that is kept is sound on simulated runs, for noise and for learning."""

from __future__ import annotations

import random
from collections.abc import Sequence
from statistics import fmean

import pytest

from ludus.data.paired_rewards import (
    Rewards,
    differences,
    is_better,
    mean_rewards,
    standard_errors,
)
from ludus.train.output.record import Comparison

EVALUATIONS = 13


def simulated_run(curve: Sequence[float], tasks: int, seed: int) -> list[Rewards]:
    """Evaluations of tasks of different difficulty; the curve changes their chance of success."""
    rng = random.Random(seed)
    chances = [rng.random() for _ in range(tasks)]
    return [[float(rng.random() < chance + change) for chance in chances] for change in curve]


def kept(evaluations: Sequence[Rewards]) -> int:
    """The evaluation whose model a run keeps, decided after each one."""
    best = 0
    for at in range(1, len(evaluations)):
        if is_better(evaluations[: at + 1], at, best):
            best = at
    return best


def line(change: float) -> list[float]:
    return [change * at / (EVALUATIONS - 1) for at in range(EVALUATIONS)]


def kept_changes(curve: Sequence[float], tasks: int = 64, runs: int = 60) -> list[float]:
    """How much better than the start the kept models are, over many runs."""
    return [curve[kept(simulated_run(curve, tasks, seed))] for seed in range(runs)]


def test_a_run_that_falls_by_8_points_keeps_about_its_start() -> None:
    changes = kept_changes(line(-0.08))
    assert fmean(changes) > -0.01, "the best of 13 noisy evaluations is 2 to 3 points worse"
    assert sum(change < -0.02 for change in changes) <= 0.2 * len(changes)


@pytest.mark.parametrize(("tasks", "share"), [(64, 0.6), (256, 0.8)])
def test_a_run_that_learns_keeps_most_of_it(tasks: int, share: float) -> None:
    assert fmean(kept_changes(line(0.1), tasks, runs=40)) > 0.1 * share
    assert fmean(kept_changes(line(0.25), tasks, runs=20)) > 0.23


def test_a_run_that_rises_and_falls_keeps_about_its_peak() -> None:
    curve = [0.15 * (at / 6 if at <= 6 else 1 - (at - 6) / 3) for at in range(EVALUATIONS)]
    assert fmean(kept_changes(curve)) > 0.1


def test_the_reported_difference_of_a_run_that_learns_nothing_is_nothing() -> None:
    """Of the kept model on fresh tasks: on those that selected it, it would be several points."""
    gains, claims = [], 0
    for seed in range(200):
        evaluations = simulated_run([0.0] * EVALUATIONS, 64, seed)
        fresh = simulated_run([0.0] * EVALUATIONS, 64, seed + 1000)
        best = kept(evaluations)
        comparison = Comparison.of(fresh[0], fresh[best])
        assert comparison is not None
        gains.append(comparison.saved - comparison.start)
        claims += comparison.low is not None and comparison.low > 0
    assert abs(fmean(gains)) < 0.01
    assert claims <= 0.05 * len(gains)


def test_only_tasks_with_a_reward_of_both_models_are_compared() -> None:
    assert differences([0.0, None, 0.5, 1.0], [1.0, 1.0, None, 0.5]) == [1.0, -0.5]
    comparison = Comparison.of([0.0, None, 0.5, 1.0], [1.0, 1.0, None, 0.5])
    assert comparison == Comparison(tasks=2, start=0.5, saved=0.75)
    assert Comparison.of([None], [1.0]) is None


def test_rewards_are_averaged_over_the_evaluations_that_have_one() -> None:
    assert mean_rewards([[0.0, None, None], [1.0, 0.5, None]]) == [0.5, 0.5, None]
    assert mean_rewards([[0.0], [1.0]], [1.0, 3.0]) == [0.75]


def test_equal_differences_are_certain_and_few_are_not() -> None:
    assert standard_errors([0.1] * 8) == float("inf")
    assert standard_errors([0.0] * 8) == 0.0
    assert standard_errors([0.1, 0.2]) == 0.0


@pytest.mark.parametrize(
    ("gain", "verdict"), [(0.3, "better than"), (-0.3, "WORSE than"), (0.02, "no measurable")]
)
def test_the_verdict_says_plainly_if_the_model_is_better(gain: float, verdict: str) -> None:
    start = [at % 10 / 10 for at in range(40)]
    saved = [reward + gain + 0.1 * (at % 3 - 1) for at, reward in enumerate(start)]
    assert verdict in str(Comparison.of(start, saved))
    assert "the same as the start" in str(Comparison.of(start, start))
