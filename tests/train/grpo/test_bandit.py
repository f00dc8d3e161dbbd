"""The bandit with simulated learners."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from math import exp
from statistics import fmean

import pytest

from ludus.environment.task_buckets import Bucket
from ludus.train.grpo.curriculum import Curriculum, band_weight

GROUPS, GROUP_SIZE = 8, 4


def simulate(
    bandit: Curriculum, steps: range, attempt: Callable[[int, random.Random], float]
) -> list[Counter[int]]:
    """Let a learner attempt what is drawn; returns the draws of each step."""
    draws = []
    for step in steps:
        rng = random.Random(step)
        drawn = bandit.draw(range(GROUPS), f"{step}")
        draws.append(Counter(drawn))
        for bucket in drawn:
            group = [attempt(bucket, rng) for _ in range(GROUP_SIZE)]
            bandit.counts[bucket].add_group(group, has_signal=len({*group}) > 1)
    return draws


def new_bandit(buckets: int, seed: int = 0) -> Curriculum:
    named = [Bucket(f"level={at}", "catch", {}) for at in range(buckets)]
    return Curriculum(named, groups=GROUPS, seed=seed)


def with_rates(*rates: float) -> Callable[[int, random.Random], float]:
    return lambda bucket, rng: float(rng.random() < rates[bucket])


def share(draws: Sequence[Counter[int]], bucket: int) -> float:
    total = sum(draws, Counter[int]())
    return total[bucket] / total.total()


@pytest.mark.parametrize("seed", range(5))
def test_neither_solved_nor_impossible_buckets_are_drawn_much(seed: int) -> None:
    draws = simulate(new_bandit(4, seed), range(60), with_rates(1.0, 0.5, 0.0, 0.0))[20:]
    assert share(draws, 1) > 0.75
    for other in (0, 2, 3):
        # But each is tried again now and then.
        assert 0 < share(draws, other) < 0.15


class Learner:
    """Learns from tasks near its skill, which is the number of buckets that it has solved."""

    def __init__(self) -> None:
        self.skill = 0.0

    def attempt(self, bucket: int, rng: random.Random) -> float:
        success = rng.random() < 1 / (1 + exp(4 * (bucket - 0.5 - self.skill)))
        self.skill += 0.01 * success * (bucket + 0.5 > self.skill)
        return float(success)


@pytest.mark.parametrize("seed", range(5))
def test_a_learner_is_followed_from_easy_to_hard(seed: int) -> None:
    learner, uniform = Learner(), Learner()
    draws = simulate(new_bandit(12, seed), range(100), learner.attempt)
    hardness = [
        fmean(sum(draws[at : at + 20], Counter[int]()).elements()) for at in range(20, 100, 20)
    ]
    assert hardness == sorted(hardness)
    rng = random.Random(seed)
    for _ in range(100 * GROUPS * GROUP_SIZE):
        uniform.attempt(rng.randrange(12), rng)
    assert learner.skill > 2 * uniform.skill


def test_a_bucket_that_was_impossible_is_found_again() -> None:
    bandit, rates = new_bandit(2), [0.5, 0.0]
    assert share(simulate(bandit, range(30), with_rates(*rates))[10:], 1) < 0.15
    assert share(simulate(bandit, range(30, 80), with_rates(0.99, 0.5))[20:], 1) > 0.6


def test_equal_rewards_of_shaped_attempts_are_no_signal() -> None:
    """All attempts at bucket 0 are half right: its success rate is 50 %, and nothing is learned."""

    def attempt(bucket: int, rng: random.Random) -> float:
        return rng.choice([0.0, 0.3]) if bucket else 0.5

    draws = simulate(new_bandit(2), range(60), attempt)[20:]
    assert share(draws, 1) > 0.7


def test_untried_buckets_come_first_from_easy_to_hard() -> None:
    bandit = new_bandit(10)
    draws = simulate(bandit, range(3), with_rates(*[0.5] * 10))
    assert {*draws[0]} == {0, 1, 2, 3}
    assert {4, 5, 6, 7} <= {*draws[1]} <= {*range(8)}
    assert {8, 9} <= {*draws[2]}


def test_draws_depend_on_outcomes_seed_and_step_alone() -> None:
    bandit = new_bandit(5, seed=1)
    simulate(bandit, range(10), with_rates(1, 0.7, 0.4, 0.1, 0))
    state = bandit.state

    def draw(seed: int, key: str) -> Sequence[int]:
        named = bandit.buckets
        return Curriculum(named, groups=GROUPS, seed=seed, state=state).draw(range(64), key)

    assert bandit.draw(range(64), "11") == draw(1, "11")
    assert draw(1, "11") != draw(2, "11")
    assert draw(1, "11") != draw(1, "11/0")


def test_groups_without_a_scored_attempt_count_as_drawn_only() -> None:
    bandit = new_bandit(2)
    bandit.counts[0].add_group([], has_signal=False)
    assert bandit.counts[0].success_rate is None and bandit.counts[0].total_groups == 1


def test_the_weight_is_full_between_20_and_80_percent() -> None:
    assert band_weight(0.2) == band_weight(0.5) == 1
    assert band_weight(0.8) == pytest.approx(1)
    assert band_weight(0.1) == pytest.approx(band_weight(0.9)) == pytest.approx(0.25)
    assert band_weight(0) == band_weight(1) == 0
