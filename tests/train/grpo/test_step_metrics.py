"""The line of the log that a step gets."""

from __future__ import annotations

from math import nan

from ludus.train.grpo.step_metrics import to_log_line


def test_the_reward_is_that_before_resampling() -> None:
    logs = {
        "reward": 0.5,
        "reward_std": 0.5,
        "before_resampling/reward": 0.2,
        "before_resampling/reward_std": 0.4,
    }
    assert to_log_line(logs) == {
        "reward": 0.2, "reward_trained": 0.5, "reward_std": 0.4, "reward_std_trained": 0.5
    }  # fmt: skip


def test_one_scored_episode_has_no_deviation() -> None:
    logs = {
        "reward": 1.0,
        "reward_std": nan,
        "before_resampling/reward": 1.0,
        "before_resampling/reward_std": 0.0,
    }
    assert to_log_line(logs) == {"reward": 1.0, "reward_trained": 1.0, "reward_std": 0.0}
