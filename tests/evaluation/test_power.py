"""The number of episodes that shows a difference."""

from __future__ import annotations

import random
from math import ceil

import pytest

from ludus.evaluation.results import tasks_to_detect


@pytest.mark.parametrize("effect", [0.1, 0.3])
def test_intervals_exclude_zero_in_at_least_80_percent_of_draws(effect: float) -> None:
    n, draws, chance = ceil(tasks_to_detect(effect, 0.5)), 400, random.Random(0)
    low, high = 0.5 - effect / 2, 0.5 + effect / 2
    detected = 0
    for _ in range(draws):
        differences = [(chance.random() < high) - (chance.random() < low) for _ in range(n)]
        mean = sum(differences) / n
        variance = sum((each - mean) ** 2 for each in differences) / (n - 1)
        detected += abs(mean) > 1.96 * (variance / n) ** 0.5
    assert 0.76 <= detected / draws <= 0.88
