"""Initial and final reward, the delta, and how sure it is."""

from __future__ import annotations

from statistics import fmean
from typing import Any

import pytest

from diagnose.runs import Sample, level, ramp
from ludus.diagnose import Interval, RewardChange, RewardScale, diagnose
from ludus.diagnose.episode_stats import EpisodeStats, RunEpisodes, group_episodes
from ludus.diagnose.number_format import (
    format_change_with_interval,
    format_delta,
    format_number,
    format_reward,
    format_share,
)


def attempts(rewards: dict[tuple[int, str], list[float]]) -> RunEpisodes:
    """Rewards by step and task."""
    return group_episodes(
        EpisodeStats(f"{task}-{number}", step, "wordle", task, "done", reward, reward)
        for (step, task), found in rewards.items()
        for number, reward in enumerate(found)
    )


def with_a_function(sample: Sample, *, worth: float) -> tuple[list[dict[str, Any]], RunEpisodes]:
    """A run in which a function of the user's gives as much to everybody."""
    lines, found = sample.draw()
    for line in lines:
        line["reward"] += worth
        line["rewards/brevity/mean"] = worth
    return lines, group_episodes(one._replace(reward=(one.reward or 0.0) + worth) for one in found)


def log(*rewards: float) -> list[dict[str, float]]:
    return [{"step": step, "reward": value} for step, value in enumerate(rewards, 1)]


def change(lines: list[dict[str, float]], found: RunEpisodes | None = None) -> RewardChange:
    reward = diagnose(lines, found or RunEpisodes()).reward
    assert reward is not None
    return reward


@pytest.mark.parametrize(
    ("steps", "edge"), [(1, 1), (2, 1), (7, 3), (10, 5), (50, 5), (70, 7), (150, 15)]
)
def test_a_tenth_of_the_run_at_either_end_is_compared_but_at_least_five(
    steps: int, edge: int
) -> None:
    lines = log(*(float(step) / 200 for step in range(steps)))
    found = diagnose(lines)
    assert found.window == edge and found.reward is not None
    assert found.reward.initial == pytest.approx(fmean(line["reward"] for line in lines[:edge]))
    assert found.reward.final == pytest.approx(fmean(line["reward"] for line in lines[-edge:]))
    assert found.reward.interval is None


def test_episodes_count_more_than_the_log() -> None:
    found = change(log(0.9, 0.9), attempts({(1, "a"): [0.0, 1.0], (2, "b"): [1.0, 1.0]}))
    assert (found.initial, found.final, found.delta) == (0.5, 1.0, 0.5)


def test_episodes_of_a_step_that_is_not_logged_yet_are_left_out() -> None:
    found = {(1, "a"): [0.0], (2, "b"): [1.0], (3, "c"): [0.0]}
    assert change(log(0.0, 1.0), attempts(found)).final == 1.0


def test_steps_that_are_logged_every_ten_take_the_episodes_of_all_ten() -> None:
    lines = [{"step": step, "reward": 0.5} for step in (10, 20)]
    rewards = {(step, f"t{step}"): [float(step > 15)] for step in range(1, 21)}
    found = change(lines, attempts(rewards))
    assert (found.initial, found.final) == (0.0, 0.5)


def test_the_interval_holds_the_delta_and_is_the_same_every_time() -> None:
    lines, found = Sample().read()
    first, second = change(lines, found), change(lines, found)
    assert first.interval == second.interval and first.interval is not None
    assert first.interval.low < first.delta < first.interval.high


def test_the_interval_covers_the_truth_about_as_often_as_it_says() -> None:
    held = 0
    for seed in range(40):
        sample = Sample({"w": ramp((0.0, 0.3), (0.5, 0.3), (0.51, 0.6), (1.0, 0.6))}, seed=seed)
        sample.steps, sample.luck = 20, 0.25
        interval = change(*sample.read()).interval
        assert interval is not None
        held += interval.low <= 0.3 <= interval.high
    assert 35 <= held <= 40


def test_attempts_at_one_task_are_no_independent_evidence() -> None:
    """Eight attempts that always agree are as much evidence as one."""
    one = {(step, f"t{step}.{n}"): [float(n % 2)] for step in range(1, 11) for n in range(4)}
    eight = {key: rewards * 8 for key, rewards in one.items()}
    assert change(log(*[0.5] * 10), attempts(eight)).interval == (
        change(log(*[0.5] * 10), attempts(one)).interval
    )


def test_a_task_that_comes_up_in_several_steps_is_one_task() -> None:
    often = {(step, f"t{n}"): [float(n % 2)] for step in range(1, 11) for n in range(6)}
    once = {(step, f"t{n}"): [float(n % 2)] for step in (1, 10) for n in range(6)}
    assert change(log(*[0.5] * 10), attempts(often)).interval == (
        change(log(*[0.5] * 10), attempts(once)).interval
    )


def test_rewards_that_are_all_equal_are_no_certainty() -> None:
    same = {(step, f"t{step}.{n}"): [float(step > 5)] for step in range(1, 11) for n in range(4)}
    found = change(log(*[0.0] * 5, *[1.0] * 5), attempts(same))
    assert (found.delta, found.interval) == (1.0, None)
    assert "interval" not in format_change_with_interval(found)


def test_a_handful_of_tasks_has_no_interval() -> None:
    found = attempts({(1, "a"): [0.0, 1.0], (2, "b"): [1.0, 1.0]})
    assert change(log(0.5, 1.0), found).interval is None


def test_steps_that_learn_from_episodes_again_are_steps_too() -> None:
    lines = [{"step": step, **({"reward": 0.5} if step % 2 else {})} for step in range(1, 13)]
    found = diagnose(lines)
    assert (found.steps, found.window, len(found.curve)) == (12, 3, 6)
    assert found.verdicts[0].name == "too short to tell" and "6 steps" in found.verdicts[0].finding


def test_a_step_that_was_logged_twice_counts_once_as_it_was_last() -> None:
    assert change([*log(0.0, 0.5), *log(0.0, 1.0)]).final == 1.0


def test_environments_have_intervals_and_reward_functions_are_told_from_the_log() -> None:
    sample = Sample({"wordle": ramp((0.0, 0.2), (1.0, 0.7)), "catch": level(0.5)})
    lines, found = sample.read()
    for line in lines:
        line["rewards/brevity/mean"] = 0.25
    parts = {part.name: part for part in diagnose(lines, found).parts}
    assert list(parts) == ["catch", "wordle", "brevity"]
    assert parts["wordle"].delta > 0.3 > abs(parts["catch"].delta)
    assert parts["wordle"].interval is not None and parts["brevity"].interval is None


def test_under_an_environments_name_stands_what_it_gave_and_not_the_sum() -> None:
    """As in the log, which is read beside it."""
    sample = Sample({"wordle": level(0.2), "catch": level(0.7)})
    lines, found = with_a_function(sample, worth=2.0)
    diagnosis = diagnose(lines, found)
    assert diagnosis.reward is not None and diagnosis.reward.initial > 2.0
    parts = {part.name: part for part in diagnosis.parts}
    for name in ("wordle", "catch"):
        logged = fmean(line[f"rewards/{name}/mean"] for line in lines[:15])
        assert parts[name].initial == pytest.approx(logged) and parts[name].scale.is_unit
    assert parts["brevity"].initial == 2.0


def test_one_environment_is_told_apart_from_a_function_beside_it() -> None:
    diagnosis = diagnose(*with_a_function(Sample(), worth=2.0))
    assert [part.name for part in diagnosis.parts] == ["wordle", "brevity"]
    assert diagnosis.reward is not None
    assert diagnosis.reward.initial == pytest.approx(diagnosis.parts[0].initial + 2.0)


def test_environments_have_scales_of_their_own() -> None:
    mixed = [("wordle", 0.5), ("catch", 5.0)]
    found = group_episodes(
        EpisodeStats(f"{name}-{step}", step, name, f"{name}-{step}", "done", reward, reward)
        for step in (1, 2)
        for name, reward in mixed
    )
    catch, wordle = diagnose(log(1.0, 1.0), found).parts
    assert wordle.scale.is_unit and not catch.scale.is_unit


def test_a_scale_of_which_only_means_are_known_is_wider_than_they_are() -> None:
    lines = [{"step": step, "reward": 5.0 + step / 100, "reward_std": 3.0} for step in range(1, 21)]
    scale = change(lines).scale
    assert [scale.low, scale.high] == pytest.approx([2.01, 8.2])


def test_one_environment_is_not_told_twice() -> None:
    assert diagnose(*Sample().read()).parts == ()


def test_rewards_between_0_and_1_are_told_in_percent_and_points() -> None:
    found = RewardChange(
        "reward", 0.234, 0.567, RewardScale.from_rewards([0.0, 1.0]), Interval(0.281, 0.38)
    )
    assert (
        format_change_with_interval(found)
        == "23.4 % -> 56.7 %, +33.3 pp (95 % interval +28.1 to +38.0 pp)"
    )


def test_other_rewards_are_told_as_they_are() -> None:
    found = RewardChange("reward", -1.0, 2.5, RewardScale.from_rewards([-1.0, 3.0]))
    assert format_change_with_interval(found) == "-1 -> 2.5, +3.5" and format_delta(found) == "+3.5"
    assert (found.normalized_initial, found.normalized_delta) == (0.0, 0.875)
    assert format_reward(12.345, found.scale) == "12.3"


def test_shares_are_not_rounded_to_nothing_or_to_everything() -> None:
    assert [format_share(part) for part in (0, 0.004, 0.5, 0.996, 1)] == [
        "0 %",
        "0.4 %",
        "50 %",
        "99.6 %",
        "100 %",
    ]


@pytest.mark.parametrize(
    ("value", "digits", "told"),
    [
        (0.012345, 3, "0.0123"),
        (999.4, 3, "999"),
        (999.6, 3, "1,000"),
        (12345.6, 3, "12,346"),
        (541.2, 2, "541"),
        (99.7, 2, "100"),
        (0.0, 2, "0"),
        (-1234.5, 3, "-1,234"),
    ],
)
def test_large_numbers_are_written_out(value: float, digits: int, told: str) -> None:
    assert format_number(value, digits=digits) == told
