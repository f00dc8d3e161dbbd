"""Runs with rewards outside 0 to 1, whose best possible reward is unknown."""

from __future__ import annotations

import pytest

from diagnose.runs import Curve, Sample, level, ramp
from ludus.diagnose import diagnose
from ludus.diagnose.episode_stats import group_episode_stats


def verdicts(curve: Curve, worth: tuple[float, float], luck: float = 0.02) -> list[str]:
    sample = Sample({"wordle": curve}, worth=worth, luck=luck)
    return [verdict.name for verdict in diagnose(*sample.read()).verdicts]


@pytest.mark.parametrize(("worth", "easy"), [((0.0, 1.0), True), ((0.0, 5.0), False)])
def test_too_easy_requires_a_known_best_reward(worth: tuple[float, float], easy: bool) -> None:
    assert ("too easy" in verdicts(level(0.97), worth)) is easy


def test_fall_from_a_high_start_is_getting_worse() -> None:
    assert verdicts(ramp((0.0, 0.97), (1.0, 0.7)), (-1.0, 3.0)) == ["getting worse"]


def test_rare_successes_are_too_hard_on_any_scale() -> None:
    assert verdicts(level(0.02), (-1.0, 3.0)) == ["too hard"]


@pytest.mark.parametrize("reward", [5.0, -1.0])
def test_constant_rewards_are_only_dead_groups(reward: float) -> None:
    assert verdicts(level(0.5), (reward, reward)) == ["dead groups"]


def test_constant_rewards_are_no_entropy_collapse() -> None:
    gone = {"entropy": ramp((0.0, 0.5), (0.2, 0.005), (1.0, 0.004))}
    sample = Sample({"wordle": level(0.5)}, worth=(5.0, 5.0), figures=gone)
    names = [verdict.name for verdict in diagnose(*sample.read()).verdicts]
    assert "entropy collapse" not in names


def test_scale_is_not_the_range_of_step_means() -> None:
    """Without episodes the lowest step mean is not the worst reward."""
    rewards = [5.0] * 20 + [5.5] + [5.0] * 20
    lines = [
        {"step": step, "reward": reward, "reward_std": 3.0, "zero_variance": 0.55}
        for step, reward in enumerate(rewards, 1)
    ]
    assert "too hard" not in [verdict.name for verdict in diagnose(lines).verdicts]


def test_environment_verdicts_ignore_reward_functions() -> None:
    """A length penalty does not make a task harder."""
    sample = Sample({"wordle": level(0.5), "catch": level(0.98)}, luck=0.02)
    lines, attempts = sample.draw()
    fined = group_episode_stats(one._replace(reward=(one.reward or 0.0) - 0.5) for one in attempts)
    assert "too easy: catch" in [verdict.name for verdict in diagnose(lines, fined).verdicts]
