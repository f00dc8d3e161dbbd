"""A curriculum in training: what is drawn, resumed, recorded and refused."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from ludus import Episode, GRPOConfig, grpo
from ludus.data.episode import StopReason
from ludus.data.training_log import read_bucket_metrics
from ludus.environment.task_buckets import Bucket, evenly
from ludus.errors import ConfigError, RunError
from ludus.train.grpo.curriculum import Curriculum
from train.grpo.toy_environments import LEVELS, PICK, read_episodes, small_config
from train.short_runs import RecordingProgress, read_curve


def level_config(**changes: Any) -> Any:
    return small_config(**{"curriculum": ("level=0..3",), "groups": 8, **changes})


def levels_drawn(out: Path, *, from_step: int = 1) -> Counter[int]:
    played = [each for each in read_episodes(out) if each.agent["step"] >= from_step]
    return Counter(episode.task["level"] for episode in played)


def test_tasks_are_drawn_where_some_attempts_succeed(model: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    config = level_config(steps=8, learning_rate=1e-6, eval_every=8, eval_episodes=8)
    grpo(LEVELS, str(model), out, config)
    drawn = levels_drawn(out, from_step=4)
    assert drawn[1] + drawn[2] > 3 * (drawn[0] + drawn[3])
    for line in read_curve(out):
        if "loss" in line:
            assert sum(bucket.groups for bucket in read_bucket_metrics(line).values()) == 8
    record = json.loads((out / "training.json").read_text())
    assert record["settings"]["curriculum"] == ["level=0..3"]
    buckets = record["metrics"]["buckets"]
    assert [each["label"] for each in buckets] == [f"level={level}" for level in range(4)]
    assert {each["label"]: each["attempts"] for each in buckets} == {
        f"level={level}": count for level, count in levels_drawn(out).items()
    }
    assert buckets[3]["success"] == 0.0 and buckets[0]["success"] > 0.8


def test_a_resumed_run_draws_the_same_tasks(model: Path, tmp_path: Path) -> None:
    config = level_config(steps=4)
    grpo(LEVELS, str(model), tmp_path / "whole", config)
    stopped = RecordingProgress(stop_after=2)
    grpo(LEVELS, str(model), tmp_path / "parts", config, progress=stopped)
    with pytest.raises(RunError, match="curriculum"):
        other = level_config(steps=4, curriculum=("level=0..2",))
        grpo(LEVELS, str(model), tmp_path / "parts", other)
    assert grpo(LEVELS, str(model), tmp_path / "parts", config).resumed_from == 2
    whole, parts = read_episodes(tmp_path / "whole"), read_episodes(tmp_path / "parts")
    assert [(each.episode_id, each.task) for each in whole] == [
        (each.episode_id, each.task) for each in parts
    ]
    drawn = [[*map(read_bucket_metrics, read_curve(tmp_path / run))] for run in ("whole", "parts")]
    assert drawn[0] == drawn[1] and all(drawn[0])


@pytest.mark.parametrize(
    ("environment", "axis", "reason"),
    [
        (LEVELS, "levle=0..3", "level"),
        (PICK, "level=0..3", "no task argument"),
        (LEVELS, "level=2..5", "level=4"),
        (LEVELS, "level=2..5", "There is no level 4"),
        (f"{LEVELS},{PICK}", "level=0..3", "one environment"),
        (LEVELS, "variant=a,b", "variants"),
    ],
)
def test_a_curriculum_that_cannot_be_played_raises_before_training(
    environment: str, axis: str, reason: str, model: Path, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=reason):
        grpo(environment, str(model), tmp_path / "out", small_config(curriculum=(axis,)))
    assert not (tmp_path / "out").exists()


def episode(reward: float | None, **rewards: float) -> Episode:
    return Episode(
        episode_id="a", stop_reason=StopReason.DONE, reward=reward, environment=LEVELS,
        group_id="a", rewards=rewards,
    )  # fmt: skip


def success_after(*attempts: Episode, **options: Any) -> float | None:
    buckets = [Bucket(f"level={level}", LEVELS, {"level": level}) for level in range(2)]
    curriculum = Curriculum(buckets, groups=1, seed=0, **options)
    curriculum.draw([0], "1")
    (metrics,) = read_bucket_metrics(curriculum.update([attempts], [True])).values()
    return metrics.success


def test_success_is_the_solved_part_or_else_the_reward_within_its_range() -> None:
    assert success_after(episode(0.3, solved=0.0), episode(1.0, solved=1.0)) == 0.5
    assert success_after(episode(0.25), episode(0.75)) == 0.5
    assert success_after(episode(-1.0), episode(1.0), episode(1.0)) == pytest.approx(2 / 3)
    assert success_after(episode(8.0), episode(4.0)) == 0.75
    assert success_after(episode(None)) is None
    # Reward functions add to the total; the environment's own part counts, unless it has no weight.
    parts = {LEVELS: 0.5}
    assert success_after(episode(3.0, **parts)) == 0.5
    assert success_after(episode(3.0, **parts), counts_environment=False) == 1.0


def test_held_out_tasks_come_from_all_buckets_evenly() -> None:
    buckets = [Bucket(f"{at}", LEVELS, {"level": at}) for at in range(4)]
    chosen = [evenly(buckets, 8)(number)[1]["level"] for number in range(8)]
    assert Counter(chosen) == dict.fromkeys(range(4), 2)
    assert [evenly(buckets, 2)(number)[1]["level"] for number in range(2)] == [0, 2]


def test_a_curriculum_is_recorded() -> None:
    assert list(GRPOConfig(curriculum=("a=1..2",)).as_json()["curriculum"]) == ["a=1..2"]
