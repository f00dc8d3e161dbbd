"""Initial and final reward, the delta, and its interval."""

from __future__ import annotations

from statistics import fmean
from typing import Any

import pytest

from diagnose.runs import Sample, level, ramp
from ludus.data.interval_estimates import Interval
from ludus.diagnose import RewardChange, diagnose
from ludus.diagnose.episode_stats import EpisodeStats, RunEpisodes, group_episode_stats
from ludus.diagnose.reward_change import (
    format_change_with_interval,
    format_number,
    format_reward,
    format_share,
)
from ludus.diagnose.step_log import RewardScale


def group_by_step(rewards: dict[tuple[int, str], list[float]]) -> RunEpisodes:
    """Build episodes from rewards by step and task."""
    return group_episode_stats(
        EpisodeStats(f"{task}-{number}", step, "wordle", task, "done", reward)
        for (step, task), task_rewards in rewards.items()
        for number, reward in enumerate(task_rewards)
    )


def with_reward_function(
    sample: Sample, *, worth: float
) -> tuple[list[dict[str, Any]], RunEpisodes]:
    """Add a constant reward function to a run."""
    lines, episodes = sample.draw()
    for line in lines:
        line["reward"] += worth
        line["rewards/brevity/mean"] = worth
    return lines, group_episode_stats(
        one._replace(reward=(one.reward or 0.0) + worth) for one in episodes
    )


def log(*rewards: float) -> list[dict[str, float]]:
    return [{"step": step, "reward": value} for step, value in enumerate(rewards, 1)]


def compute_change(
    lines: list[dict[str, float]], episodes: RunEpisodes | None = None
) -> RewardChange:
    reward = diagnose(lines, episodes or RunEpisodes()).reward
    assert reward is not None
    return reward


@pytest.mark.parametrize(
    ("steps", "edge"), [(1, 1), (2, 1), (7, 3), (10, 5), (50, 5), (70, 7), (150, 15)]
)
def test_windows_are_a_tenth_of_the_run_but_at_least_five_steps(steps: int, edge: int) -> None:
    lines = log(*(float(step) / 200 for step in range(steps)))
    diagnosis = diagnose(lines)
    assert diagnosis.window == edge and diagnosis.reward is not None
    assert diagnosis.reward.initial == pytest.approx(fmean(line["reward"] for line in lines[:edge]))
    assert diagnosis.reward.final == pytest.approx(fmean(line["reward"] for line in lines[-edge:]))
    assert diagnosis.reward.interval is None


def test_change_is_computed_from_episodes_before_the_log() -> None:
    result = compute_change(
        log(0.9, 0.9), group_by_step({(1, "a"): [0.0, 1.0], (2, "b"): [1.0, 1.0]})
    )
    assert (result.initial, result.final, result.delta) == (0.5, 1.0, 0.5)


def test_episodes_of_unlogged_steps_are_ignored() -> None:
    rewards = {(1, "a"): [0.0], (2, "b"): [1.0], (3, "c"): [0.0]}
    assert compute_change(log(0.0, 1.0), group_by_step(rewards)).final == 1.0


def test_window_includes_episodes_of_steps_between_log_entries() -> None:
    lines = [{"step": step, "reward": 0.5} for step in (10, 20)]
    rewards = {(step, f"t{step}"): [float(step > 15)] for step in range(1, 21)}
    result = compute_change(lines, group_by_step(rewards))
    assert (result.initial, result.final) == (0.0, 0.5)


def test_interval_contains_the_delta_and_is_deterministic() -> None:
    lines, episodes = Sample().read()
    first, second = compute_change(lines, episodes), compute_change(lines, episodes)
    assert first.interval == second.interval and first.interval is not None
    assert first.interval.low < first.delta < first.interval.high


def test_interval_has_its_nominal_coverage() -> None:
    held = 0
    for seed in range(40):
        sample = Sample({"w": ramp((0.0, 0.3), (0.5, 0.3), (0.51, 0.6), (1.0, 0.6))}, seed=seed)
        sample.steps, sample.luck = 20, 0.25
        interval = compute_change(*sample.read()).interval
        assert interval is not None
        held += interval.low <= 0.3 <= interval.high
    assert 35 <= held <= 40


def test_repeated_attempts_at_a_task_do_not_narrow_the_interval() -> None:
    """Eight attempts that always agree are as much evidence as one."""
    one = {(step, f"t{step}.{n}"): [float(n % 2)] for step in range(1, 11) for n in range(4)}
    eight = {key: rewards * 8 for key, rewards in one.items()}
    assert compute_change(log(*[0.5] * 10), group_by_step(eight)).interval == (
        compute_change(log(*[0.5] * 10), group_by_step(one)).interval
    )


def test_task_in_several_steps_counts_as_one() -> None:
    often = {(step, f"t{n}"): [float(n % 2)] for step in range(1, 11) for n in range(6)}
    once = {(step, f"t{n}"): [float(n % 2)] for step in (1, 10) for n in range(6)}
    assert compute_change(log(*[0.5] * 10), group_by_step(often)).interval == (
        compute_change(log(*[0.5] * 10), group_by_step(once)).interval
    )


def test_equal_rewards_have_no_interval() -> None:
    same = {(step, f"t{step}.{n}"): [float(step > 5)] for step in range(1, 11) for n in range(4)}
    result = compute_change(log(*[0.0] * 5, *[1.0] * 5), group_by_step(same))
    assert (result.delta, result.interval) == (1.0, None)
    assert "interval" not in format_change_with_interval(result)


def test_few_tasks_have_no_interval() -> None:
    episodes = group_by_step({(1, "a"): [0.0, 1.0], (2, "b"): [1.0, 1.0]})
    assert compute_change(log(0.5, 1.0), episodes).interval is None


def test_steps_without_new_episodes_count_as_steps() -> None:
    lines = [{"step": step, **({"reward": 0.5} if step % 2 else {})} for step in range(1, 13)]
    diagnosis = diagnose(lines)
    assert (diagnosis.steps, diagnosis.window, len(diagnosis.curve)) == (12, 3, 6)
    assert (
        diagnosis.verdicts[0].name == "too short to tell"
        and "6 steps" in diagnosis.verdicts[0].finding
    )


def test_last_entry_of_a_step_counts() -> None:
    assert compute_change([*log(0.0, 0.5), *log(0.0, 1.0)]).final == 1.0


def test_environments_and_reward_functions_have_changes_of_their_own() -> None:
    sample = Sample({"wordle": ramp((0.0, 0.2), (1.0, 0.7)), "catch": level(0.5)})
    lines, episodes = sample.read()
    for line in lines:
        line["rewards/brevity/mean"] = 0.25
    parts = {part.name: part for part in diagnose(lines, episodes).parts}
    assert list(parts) == ["brevity", "catch", "wordle"]
    assert parts["wordle"].delta > 0.3 > abs(parts["catch"].delta)


def test_environment_change_excludes_reward_functions() -> None:
    """As in the log."""
    sample = Sample({"wordle": level(0.2), "catch": level(0.7)})
    lines, output = with_reward_function(sample, worth=2.0)
    diagnosis = diagnose(lines, output)
    assert diagnosis.reward is not None and diagnosis.reward.initial > 2.0
    parts = {part.name: part for part in diagnosis.parts}
    for name in ("wordle", "catch"):
        logged = fmean(line[f"rewards/{name}/mean"] for line in lines[:15])
        assert parts[name].initial == pytest.approx(logged) and parts[name].scale.is_unit
    assert parts["brevity"].initial == 2.0


def test_environment_and_reward_function_are_components() -> None:
    diagnosis = diagnose(*with_reward_function(Sample(), worth=2.0))
    assert [part.name for part in diagnosis.parts] == ["brevity", "wordle"]
    assert diagnosis.reward is not None
    assert diagnosis.reward.initial == pytest.approx(diagnosis.parts[1].initial + 2.0, abs=0.01)


def test_each_environment_has_its_own_scale() -> None:
    lines = [
        {"step": step, "reward": 1.0, "rewards/wordle/mean": 0.5, "rewards/catch/mean": 5.0}
        for step in (1, 2)
    ]
    catch, wordle = diagnose(lines).parts
    assert wordle.scale.is_unit and not catch.scale.is_unit


def test_scale_from_the_log_is_widened_by_the_deviation() -> None:
    lines = [{"step": step, "reward": 5.0 + step / 100, "reward_std": 3.0} for step in range(1, 21)]
    scale = compute_change(lines).scale
    assert [scale.low, scale.high] == pytest.approx([2.01, 8.2])


def test_single_environment_has_no_components() -> None:
    assert diagnose(*Sample().read()).parts == ()


def test_unit_rewards_have_three_decimals() -> None:
    result = RewardChange(
        "reward", 0.234, 0.567, RewardScale.from_rewards([0.0, 1.0]), Interval(0.281, 0.38)
    )
    assert (
        format_change_with_interval(result)
        == "0.234 -> 0.567, +0.333 (95 % interval +0.281 to +0.380)"
    )


def test_other_rewards_are_formatted_as_numbers() -> None:
    result = RewardChange("reward", -1.0, 2.5, RewardScale.from_rewards([-1.0, 3.0]))
    assert format_change_with_interval(result) == "-1 -> 2.5, +3.5"
    assert (result.normalized_initial, result.normalized_delta) == (0.0, 0.875)
    assert format_reward(12.345, result.scale) == "12.3"


def test_shares_are_not_rounded_to_0_or_100_percent() -> None:
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
def test_numbers_keep_all_digits_before_the_point(value: float, digits: int, told: str) -> None:
    assert format_number(value, digits=digits) == told
