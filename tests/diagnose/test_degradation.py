"""The degradation detector: it sees a run that gets worse, and is silent about noise."""

from __future__ import annotations

import random
from collections.abc import Sequence
from statistics import fmean
from typing import Any

import pytest

from ludus.diagnose.detectors import DegradationDetector, SignalDetector


def entries(rewards: list[float], **more: list[float]) -> list[dict[str, Any]]:
    return [
        {"step": at + 1, "reward": reward, **{key: values[at] for key, values in more.items()}}
        for at, reward in enumerate(rewards)
    ]


def first_alarm(log: list[dict[str, Any]]) -> tuple[int, str] | None:
    detector = DegradationDetector()
    for entry in log:
        if (reason := detector.update(entry)) is not None:
            return int(entry["step"]), reason
    return None


def noisy(mean: float, steps: int, rng: random.Random, episodes: int = 64) -> list[float]:
    """Mean rewards of steps whose episodes succeed with probability `mean`."""
    return [sum(rng.random() < mean for _ in range(episodes)) / episodes for _ in range(steps)]


@pytest.mark.parametrize("mean", [0.02, 0.1, 0.5, 0.95])
def test_noise_is_no_degradation(mean: float) -> None:
    alarms = sum(
        first_alarm(entries(noisy(mean, 150, random.Random(seed)))) is not None
        for seed in range(40)
    )
    assert alarms <= 1


def held_out_entry(step: int, rewards: list[float]) -> dict[str, Any]:
    return {"step": step, "eval_reward": fmean(rewards), "eval_rewards": rewards}


def held_out(
    curve: Sequence[float], tasks: int, seed: int, *, low: float = 0.0, high: float = 1.0
) -> list[dict[str, Any]]:
    """Evaluations of tasks of different difficulty; the curve changes their chance of success."""
    rng = random.Random(seed)
    chances = [rng.random() for _ in range(tasks)]
    return [
        held_out_entry(
            5 * at, [high if rng.random() < chance + change else low for chance in chances]
        )
        for at, change in enumerate(curve)
    ]


@pytest.mark.parametrize(("low", "high"), [(0.0, 1.0), (-1.0, 1.0), (0.0, 10.0)])
@pytest.mark.parametrize("evaluations", [13, 31])
def test_noise_of_held_out_rewards_is_no_degradation(
    low: float, high: float, evaluations: int
) -> None:
    """Whatever the scale of rewards is, at most about one run in twenty is rolled back."""
    logs = [held_out([0.0] * evaluations, 64, seed, low=low, high=high) for seed in range(60)]
    assert sum(first_alarm(log) is not None for log in logs) <= 5


@pytest.mark.parametrize(
    ("tasks", "fall", "share"),
    [(256, 0.08, 0.8), (128, 0.1, 0.75), (64, 0.1, 0.3), (64, 0.15, 0.7)],
)
def test_a_lasting_fall_of_ten_points_is_seen(tasks: int, fall: float, share: float) -> None:
    logs = [held_out([0.0] * 5 + [-fall] * 8, tasks, seed) for seed in range(40)]
    assert sum(first_alarm(log) is not None for log in logs) >= share * len(logs)


def test_the_same_tasks_are_compared_so_that_their_difficulty_does_not_count() -> None:
    """The rewards spread over the whole scale, and every task loses 6 points."""
    rewards = [at / 63 for at in range(64)]
    worse = [reward - 0.06 - 0.001 * (at % 3) for at, reward in enumerate(rewards)]
    assert first_alarm([held_out_entry(0, rewards), held_out_entry(5, rewards)]) is None
    alarm = first_alarm([held_out_entry(0, rewards), held_out_entry(5, worse)])
    assert alarm is not None and alarm[0] == 5
    assert first_alarm([held_out_entry(0, rewards), held_out_entry(5, worse[::-1])]) is None


def test_a_learning_run_is_no_degradation() -> None:
    rng = random.Random(1)
    rewards = [value for step in range(150) for value in noisy(0.1 + 0.005 * step, 1, rng)]
    assert first_alarm(entries(rewards)) is None


@pytest.mark.parametrize(("before", "after"), [(0.5, 0.25), (0.3, 0.1), (0.9, 0.6)])
def test_a_fall_is_seen_within_ten_steps(before: float, after: float) -> None:
    for seed in range(20):
        rng = random.Random(seed)
        alarm = first_alarm(entries(noisy(before, 40, rng) + noisy(after, 40, rng)))
        assert alarm is not None and 40 < alarm[0] <= 50


def test_a_slow_decline_of_small_rewards_with_rising_entropy_is_reported() -> None:
    """A wordle run: the reward halves while entropy, gradient and length grow, and then dies."""
    steps = range(60)
    rewards = [max(0.0, 0.119 - 0.0006 * step - 0.004 * max(0, step - 25)) for step in steps]
    alarm = first_alarm(
        entries(
            rewards,
            entropy=[0.207 + 0.004 * step for step in steps],
            grad_norm=[0.1 * 1.07**step for step in steps],
            length=[310.0 + 4 * step for step in steps],
            format=[1.0 if step < 40 else 0.4 for step in steps],
        )
    )
    assert alarm is not None and alarm[0] <= 40


def test_a_collapse_is_seen_within_three_steps() -> None:
    rewards = noisy(0.4, 20, random.Random(0)) + [0.0] * 10
    alarm = first_alarm(entries(rewards, format=[1.0] * 20 + [0.1] * 10))
    assert alarm is not None and alarm[0] <= 23
    assert "10%" in alarm[1]


def test_a_decoder_that_disagrees_with_the_trainer_is_reported() -> None:
    log = entries([0.5] * 5, mismatch=[0.004, 0.005, 1.0, 1.1, 1.2])
    alarm = first_alarm(log)
    assert alarm is not None and alarm[0] == 5


def test_after_a_rollback_the_run_is_compared_with_its_best_steps() -> None:
    log = entries([0.5] * 12 + [0.1] * 5 + [0.5] * 10 + [0.0] * 5)
    alarm = first_alarm(log)
    assert alarm is not None and 12 < alarm[0] <= 17
    detector = DegradationDetector()
    for entry in log[:17]:
        detector.update(entry)
    detector.update({"step": 17, "rollback_to": 5})
    assert all(detector.update(entry) is None for entry in log[17:27]), "it has recovered"
    assert any(detector.update(entry) for entry in log[27:]), "and it fell again"
    detector.update({"step": 32, "rollback_to": 5})
    assert any(detector.update(entry) for entry in log[27:]), "it did not recover"


def test_harder_tasks_are_no_degradation_where_held_out_tasks_are_played_better() -> None:
    rng = random.Random(3)
    log = entries(noisy(0.4, 5, rng) + noisy(0.2, 35, rng))
    for step, reward in ((30, 0.35), (12, 0.3), (1, 0.25)):
        log.insert(step, {"step": step, "eval_reward": reward})
    assert first_alarm([entry for entry in log if "reward" in entry]) is not None
    assert first_alarm(log) is None


def test_a_fall_after_held_out_tasks_were_played_is_seen() -> None:
    rng = random.Random(4)
    log = entries(noisy(0.5, 40, rng) + noisy(0.2, 20, rng))
    for step, reward in ((20, 0.5), (1, 0.4)):
        log.insert(step, {"step": step, "eval_reward": reward})
    alarm = first_alarm(log)
    assert alarm is not None and 40 < alarm[0] <= 50


@pytest.mark.parametrize(("reward", "expected"), [(0.3, 15), (0.0, 15), (1.0, None)])
def test_a_run_without_signal_is_given_up_unless_it_is_solved(
    reward: float, expected: int | None
) -> None:
    detector = SignalDetector()
    log = entries([reward] * 30, trained=[0.5] * 5 + [0.0] * 25)
    alarms = [entry["step"] for entry in log if detector.update(entry) is not None]
    assert (alarms[0] if alarms else None) == expected


def test_a_curriculum_that_moves_on_is_no_degradation() -> None:
    rng = random.Random(0)
    groups = {"curriculum/level=1/groups": [8.0] * 80}
    falling = noisy(0.8, 40, rng) + noisy(0.3, 40, rng)
    assert first_alarm(entries(falling)) is not None
    assert first_alarm(entries(falling, **groups)) is None
    # But lost formats and a fall of the held-out reward still count.
    formats = [1.0] * 40 + [0.2] * 40
    alarm = first_alarm(entries(falling, **groups, format=formats))
    assert alarm is not None and alarm[0] == 43
    evaluated = held_out([0.0] * 3 + [-0.4] * 3, 64, seed=1)
    assert first_alarm([*entries(falling, **groups), *evaluated]) is not None
