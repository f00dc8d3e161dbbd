"""The bootstrap interval of any statistic: coverage, and that it is deterministic."""

from __future__ import annotations

from random import Random

from ludus.data.estimates import Interval, expanded_percentile_interval


def interval_of_mean(values: list[float], *, rounds: int = 400, seed: int = 0) -> Interval:
    n = len(values)
    return expanded_percentile_interval(
        lambda rng: sum(rng.choices(values, k=n)) / n,
        sum(values) / n,
        n=n,
        rounds=rounds,
        seed=seed,
    )


def test_the_same_seed_gives_the_same_interval() -> None:
    values = [0.0, 0.5, 0.5, 2.0, 3.0, 3.5]
    first = interval_of_mean(values)
    assert first == interval_of_mean(values) != interval_of_mean(values, seed=1)
    assert min(values) <= first.low < sum(values) / len(values) < first.high <= max(values)


def test_few_values_have_the_nominal_coverage() -> None:
    """A plain percentile bootstrap of ten values holds the mean 90 times of 100."""
    rng = Random(0)
    for n in (10, 20, 40):
        intervals = [interval_of_mean([rng.gauss(0, 1) for _ in range(n)]) for _ in range(400)]
        held = sum(each.low <= 0 <= each.high for each in intervals) / 400
        assert 0.925 <= held <= 0.975, n
