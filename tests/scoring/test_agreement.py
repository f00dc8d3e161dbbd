from __future__ import annotations

from random import Random

import pytest

from ludus.scoring.agreement import ScorePair, measure_agreement, rank_correlation


def test_rank_correlation_follows_order_and_averages_ties() -> None:
    assert rank_correlation([1, 2, 3], [10, 20, 1000]) == pytest.approx(1.0)
    assert rank_correlation([1, 2, 3], [3, 2, 1]) == pytest.approx(-1.0)
    # Ranks 1, 2.5, 2.5, 4 against 1, 2, 3, 4.
    assert rank_correlation([0, 1, 1, 2], [1, 2, 3, 4]) == pytest.approx(0.9486833)


@pytest.mark.parametrize("values", [[], [1.0], [2.0, 2.0, 2.0]])
def test_there_is_no_correlation_without_variance(values: list[float]) -> None:
    assert rank_correlation(values, list(range(len(values)))) is None


def test_pairs_are_compared_within_a_task_and_ties_count_half() -> None:
    scores = [
        ScorePair("a", 1.0, 0.9), ScorePair("a", 0.0, 0.1), ScorePair("a", 0.0, 0.9),
        ScorePair("b", 1.0, 0.2), ScorePair("b", 1.0, 0.8),
        ScorePair("c", 0.0, 0.7),
    ]  # fmt: skip
    agreement = measure_agreement(scores)
    assert (agreement.episodes, agreement.tasks, agreement.pairs) == (6, 3, 2)
    assert agreement.pair_accuracy == 0.75
    # Three tasks are too few for an interval.
    assert agreement.pair_accuracy_interval is None and agreement.rank_correlation_interval is None


def test_intervals_enclose_the_figures_and_narrow_with_more_tasks() -> None:
    def noisy(tasks: int) -> list[ScorePair]:
        rng = Random(5)
        pairs = []
        for task in range(tasks):
            for reward in (0.0, 1.0, 0.0, 1.0):
                pairs.append(ScorePair(str(task), reward, reward + rng.gauss(0, 1)))
        return pairs

    few, many = measure_agreement(noisy(10)), measure_agreement(noisy(100))
    for agreement in (few, many):
        assert agreement.rank_correlation is not None and agreement.pair_accuracy is not None
        low, high = agreement.rank_correlation_interval or (1, 0)
        assert low < agreement.rank_correlation < high
        low, high = agreement.pair_accuracy_interval or (1, 0)
        assert 0 < low < agreement.pair_accuracy < high <= 1
    assert few.rank_correlation_interval and many.rank_correlation_interval
    widths = [
        high - low for low, high in (few.rank_correlation_interval, many.rank_correlation_interval)
    ]
    assert widths[1] < widths[0]


def test_perfect_agreement_has_no_interval() -> None:
    scores = [ScorePair(str(task), reward, reward) for task in range(20) for reward in (0.0, 1.0)]
    agreement = measure_agreement(scores)
    assert agreement.rank_correlation == pytest.approx(1.0) and agreement.pair_accuracy == 1.0
    assert agreement.pair_accuracy_interval is None and agreement.rank_correlation_interval is None


def test_large_runs_get_about_the_same_interval_by_a_formula() -> None:
    rng = Random(1)
    scores = [
        ScorePair(str(task), reward := rng.random(), reward + rng.gauss(0, 0.5))
        for task in range(2_600)
    ]
    exact, large = measure_agreement(scores[:2_400]), measure_agreement(scores)
    assert exact.rank_correlation_interval and large.rank_correlation_interval
    for one, other in zip(
        exact.rank_correlation_interval, large.rank_correlation_interval, strict=True
    ):
        assert one == pytest.approx(other, abs=0.04)


def test_huge_groups_are_sampled() -> None:
    scores = [ScorePair("g", index, index) for index in range(1_000)]
    assert measure_agreement(scores).pairs == 100 * 99 / 2


def test_scores_that_never_vary_agree_with_nothing() -> None:
    scores = [ScorePair(str(task), reward, 0.5) for task in range(9) for reward in (0.0, 1.0)]
    agreement = measure_agreement(scores)
    assert agreement.rank_correlation is None and agreement.pair_accuracy is None
