"""Where rewards lie outside 0 and 1, nobody knows how good the best would be."""

from __future__ import annotations

import pytest

from diagnose.runs import Curve, Sample, level, ramp
from ludus.diagnose import diagnose
from ludus.diagnose.episode_stats import group_episodes


def verdicts(curve: Curve, worth: tuple[float, float], luck: float = 0.02) -> list[str]:
    sample = Sample({"wordle": curve}, worth=worth, luck=luck)
    return [verdict.name for verdict in diagnose(*sample.read()).verdicts]


@pytest.mark.parametrize(("worth", "easy"), [((0.0, 1.0), True), ((0.0, 5.0), False)])
def test_a_run_is_too_easy_only_where_the_best_is_known(
    worth: tuple[float, float], easy: bool
) -> None:
    assert ("too easy" in verdicts(level(0.97), worth)) is easy


def test_a_run_that_begins_at_its_best_and_falls_is_getting_worse_and_not_too_easy() -> None:
    assert verdicts(ramp((0.0, 0.97), (1.0, 0.7)), (-1.0, 3.0)) == ["getting worse"]


def test_a_run_that_seldom_gets_the_best_that_it_has_seen_is_too_hard() -> None:
    assert verdicts(level(0.02), (-1.0, 3.0)) == ["too hard"]


@pytest.mark.parametrize("reward", [5.0, -1.0])
def test_rewards_that_are_all_the_same_may_be_the_best_or_the_worst(reward: float) -> None:
    assert verdicts(level(0.5), (reward, reward)) == ["dead groups"]


def test_a_sure_policy_is_not_said_to_get_little_where_all_rewards_are_the_same() -> None:
    gone = {"entropy": ramp((0.0, 0.5), (0.2, 0.005), (1.0, 0.004))}
    sample = Sample({"wordle": level(0.5)}, worth=(5.0, 5.0), figures=gone)
    names = [verdict.name for verdict in diagnose(*sample.read()).verdicts]
    assert "entropy collapse" not in names


def test_means_that_hardly_differ_are_not_taken_for_the_whole_scale() -> None:
    """Without episodes, the lowest mean of a step is not the worst that there is."""
    rewards = [5.0] * 20 + [5.5] + [5.0] * 20
    lines = [
        {"step": step, "reward": reward, "reward_std": 3.0, "equal": 0.55}
        for step, reward in enumerate(rewards, 1)
    ]
    assert "too hard" not in [verdict.name for verdict in diagnose(lines).verdicts]


def test_an_environment_is_judged_by_what_it_gave_and_not_by_what_was_added() -> None:
    """A penalty for length does not make a task harder."""
    sample = Sample({"wordle": level(0.5), "catch": level(0.98)}, luck=0.02)
    lines, attempts = sample.draw()
    fined = group_episodes(one._replace(reward=(one.reward or 0.0) - 0.5) for one in attempts)
    assert "too easy: catch" in [verdict.name for verdict in diagnose(lines, fined).verdicts]
