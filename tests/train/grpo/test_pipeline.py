"""GRPO from end to end: learning, adapters, held-out tasks, several processes."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from ludus import Episode, grpo
from ludus.environment.task_splits import key_digest, split_of
from ludus.errors import ConfigError
from ludus.train import Lora
from ludus.train.grpo.held_out import HeldOutEvaluator
from train.grpo.toy_environments import (
    FLAT,
    LEVELS,
    MANY_PICKS,
    PICK,
    read_episodes,
    small_config,
)
from train.short_runs import RecordingProgress, read_curve
from train.test_processes import DDP, FSDP, launch


class CudnnProbe(RecordingProgress):
    """Records at each step whether cuDNN attention, which plans for every shape, is enabled."""

    def __init__(self) -> None:
        super().__init__()
        self.cudnn_enabled: list[bool] = []

    def step(self, line: Mapping[str, Any]) -> None:
        super().step(line)
        self.cudnn_enabled.append(torch.backends.cuda.cudnn_sdp_enabled())


def test_training_raises_the_reward_and_writes_all_files(model: Path, tmp_path: Path) -> None:
    config = small_config(steps=30, groups=4, group_size=8, learning_rate=1e-3, seed=1)
    result = grpo(PICK, str(model), tmp_path / "out", config)
    log = read_curve(tmp_path / "out")
    assert result.steps == len(log) == 30
    assert fmean(line["reward"] for line in log[:3]) < 0.3
    assert fmean(line["reward"] for line in log[-3:]) > 0.8
    # All episodes are kept, with the step that they were played for.
    episodes = read_episodes(tmp_path / "out")
    assert [episode.agent["step"] for episode in episodes] == [
        step for step in range(1, 31) for _ in range(32)
    ]
    last = [episode.reward for episode in episodes[-32:]]
    assert log[-1]["reward"] == fmean(reward for reward in last if reward is not None)
    record = json.loads((tmp_path / "out" / "training.json").read_text())
    assert record["kind"] == "grpo" and record["environment"]["spec"] == PICK
    assert record["metrics"]["last_reward"] > record["metrics"]["first_reward"]
    for name in ("model.safetensors", "tokenizer.json", "README.md", "reward.png"):
        assert (tmp_path / "out" / name).is_file()
    card = (tmp_path / "out" / "README.md").read_text()
    assert f"ludus eval {PICK} " in card


def test_cudnn_attention_is_off_while_training(model: Path, tmp_path: Path) -> None:
    probe = CudnnProbe()
    grpo(PICK, str(model), tmp_path / "out", small_config(), progress=probe)
    assert probe.cudnn_enabled and not any(probe.cudnn_enabled)
    assert torch.backends.cuda.cudnn_sdp_enabled()
    assert any(text.startswith("Rollouts by") for text in probe.messages)


def test_an_adapter_is_trained_and_merged(model: Path, tmp_path: Path) -> None:
    config = small_config(steps=2, lora=Lora(rank=4), zero_variance_groups="keep", seed=2)
    grpo(PICK, str(model), tmp_path / "out", config)
    assert (tmp_path / "out" / "adapter" / "adapter_model.safetensors").is_file()
    assert (tmp_path / "out" / "model.safetensors").is_file()
    assert any(line["grad_norm"] > 0 for line in read_curve(tmp_path / "out"))


def test_the_batch_size_does_not_change_the_gradient(model: Path, tmp_path: Path) -> None:
    for batch in (None, 4):
        config = small_config(
            steps=2, groups=2, group_size=4, batch_size=batch, zero_variance_groups="keep"
        )
        grpo(PICK, str(model), tmp_path / str(batch), config)
    one, other = read_curve(tmp_path / "None"), read_curve(tmp_path / "4")
    for a, b in zip(one, other, strict=True):
        assert a["reward"] == b["reward"]
        assert a["grad_norm"] == pytest.approx(b["grad_norm"], rel=1e-3)


def test_held_out_tasks_are_evaluated_before_during_and_after_training(
    model: Path, tmp_path: Path
) -> None:
    config = small_config(steps=5, eval_every=2, eval_episodes=6)
    grpo(PICK, str(model), tmp_path / "out", config)
    held = [line for line in read_curve(tmp_path / "out") if "eval_reward" in line]
    # Before training, every two steps, and at the end.
    assert [line["step"] for line in held] == [0, 2, 4, 5]
    assert all(line["eval_episodes"] == 6 and 0 <= line["eval_reward"] <= 1 for line in held)
    assert all(len(line["eval_rewards"]) == 6 for line in held)


@pytest.mark.parametrize("lora", [None, Lora(rank=4)], ids=["all weights", "adapter"])
def test_the_saved_model_is_compared_with_the_start_on_fresh_tasks(
    model: Path, tmp_path: Path, lora: Lora | None
) -> None:
    """Also if the run was resumed: the start's rewards are in the log."""
    out, seen = tmp_path / "out", RecordingProgress()
    changes = {"steps": 12, "groups": 4, "group_size": 8, "eval_every": 6, "eval_episodes": 24}
    config = small_config(**changes, learning_rate=1e-2 if lora else 2e-3, seed=1, lora=lora)
    grpo(PICK, str(model), out, config, progress=RecordingProgress(stop_after=3))
    grpo(PICK, str(model), out, config, progress=seen)
    log = read_curve(out)
    # At the start, when it was stopped, and at the end.
    start, _, saved = (line["fresh_rewards"] for line in log if "fresh_rewards" in line)
    record = json.loads((out / "training.json").read_text())
    comparison = record["comparison"]
    assert (comparison["start"], comparison["saved"]) == (fmean(start), fmean(saved))
    assert comparison["low"] > 0, "it has learned"
    assert record["metrics"]["eval_reward"] == comparison["saved"]
    assert record["metrics"]["kept_step"] == 12
    (said,) = (text for text in seen.messages if "fresh" in text)
    assert "better than the start" in said and said in (out / "README.md").read_text()
    # They are other tasks than those that select the model, and than those that are trained on.
    assert start != next(line["eval_rewards"] for line in log if "eval_rewards" in line)


def test_held_out_and_fresh_tasks_are_no_training_tasks(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    played: dict[str, set[str]] = {"held-out": set(), "fresh": set()}
    play = HeldOutEvaluator.play

    def record(self: HeldOutEvaluator, trainer: Any, purpose: Any, when: str) -> Any:
        episodes = play(self, trainer, purpose, when)
        played[purpose] |= {str(episode.messages[1].content) for episode in episodes}
        return episodes

    monkeypatch.setattr(HeldOutEvaluator, "play", record)
    seen = RecordingProgress()
    config = small_config(steps=4, groups=8, eval_every=2, eval_episodes=12)
    grpo(MANY_PICKS, str(model), tmp_path / "out", config, progress=seen)
    trained = {str(each.messages[1].content) for each in read_episodes(tmp_path / "out")}
    splits = {"held-out": {"validation"}, "fresh": {"test"}, "training": {"train"}}
    for name, tasks in {**played, "training": trained}.items():
        assert {split_of(key_digest(task)) for task in tasks} == splits[name]
        assert len(tasks) == {"held-out": 12, "fresh": 12, "training": 32}[name]
    assert not any("too few" in text for text in seen.messages)


def test_an_environment_with_too_few_tasks_is_named(model: Path, tmp_path: Path) -> None:
    seen = RecordingProgress()
    grpo(PICK, str(model), tmp_path / "out", small_config(), progress=seen)
    assert sum("Pick has too few different tasks" in text for text in seen.messages) == 1


SHORT = ("--steps", 2, "--groups", 3, "--group-size", 4, "--eval-every", 0)


def launch_two_processes(
    monkeypatch: pytest.MonkeyPatch, spec: str, model: Path, out: Path, *options: object,
    program: tuple[str, ...] = DDP,
) -> Any:  # fmt: skip
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join((str(Path(__file__).parents[2]), *sys.path)))
    return launch(
        2, "train", "grpo", spec, "--model", model, "-o", out, "--max-episode-tokens", 64,
        "--learning-rate", 3e-3, "--device", "cpu", "--precision", "fp32", "--report-to", "none",
        *options, program=program,
    )  # fmt: skip


@pytest.mark.parametrize("program", [DDP, pytest.param(FSDP, marks=pytest.mark.slow)])
def test_two_processes_train_like_one(
    program: tuple[str, ...], model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also in steps in which one process or both have no learning signal."""
    options = ("--steps", 6, "--groups", 4, "--group-size", 4, "--seed", 2, "--eval-every", 3)
    done = launch_two_processes(
        monkeypatch, FLAT, model, tmp_path / "two", *options, "--set", "eval_episodes=6",
        program=program,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    config = small_config(steps=6, groups=4, seed=2, eval_every=3, eval_episodes=6)
    grpo(FLAT, str(model), tmp_path / "one", config)
    one, two = (read_curve(tmp_path / run) for run in ("one", "two"))
    depends_on_processes = {"micro_batches", "reused"}
    for line, other in zip(one, two, strict=True):
        assert line.keys() == other.keys()
        for name in line.keys() - depends_on_processes:
            if not name.startswith("time/"):
                assert line[name] == pytest.approx(other[name], rel=1e-3, abs=1e-6), name
    assert any(line.get("trained") == 0 for line in one[1:]), "a step without a gradient"
    assert any(0 < line.get("zero_variance", 0) < 1 for line in one)
    facts = [
        [(each.seed, each.group_id, each.messages) for each in read_episodes(tmp_path / run)]
        for run in ("one", "two")
    ]
    assert facts[0] == facts[1]
    weights = [load_file(tmp_path / run / "model.safetensors") for run in ("one", "two")]
    for name, weight in weights[0].items():
        torch.testing.assert_close(weights[1][name], weight, atol=1e-4, rtol=1e-3)


@pytest.mark.slow
def test_two_processes_draw_the_same_curriculum_as_one(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = (*SHORT, "--curriculum", "level=0..3")
    done = launch_two_processes(monkeypatch, LEVELS, model, tmp_path / "two", *options)
    assert done.returncode == 0, done.stderr
    config = small_config(groups=3, curriculum=("level=0..3",), device="cpu")
    grpo(LEVELS, str(model), tmp_path / "one", config)
    one, two = (read_episodes(tmp_path / run) for run in ("one", "two"))
    tasks = [[(each.episode_id, each.task) for each in run] for run in (one, two)]
    assert len(tasks[0]) == 24 and tasks[0] == tasks[1]


def judge(episode: Episode) -> float:
    if os.environ.get("RANK") == "1":
        raise RuntimeError("the judge is down")
    return 0.0


@pytest.mark.slow
def test_an_error_on_another_rank_is_reported_once(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reward = (*SHORT, "--reward-func", "train.grpo.test_pipeline:judge")
    done = launch_two_processes(monkeypatch, PICK, model, tmp_path / "out", *reward)
    assert done.returncode == 1
    assert done.stderr.count("the judge is down") == 1


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"keep": "first"}, "`keep`"),
        ({"overrides": {"num_generations": "5"}}, "num_generations"),
        ({"overrides": {"max_step": "4"}}, "max_steps"),
        ({"vllm_mode": "colocate"}, "vllm|vLLM"),
        ({"reward_funcs": ("nowhere:f",)}, "nowhere"),
    ],
)
def test_invalid_settings_raise_before_anything_is_written(
    model: Path, tmp_path: Path, changes: dict[str, Any], match: str
) -> None:
    with pytest.raises(ConfigError, match=match):
        grpo(PICK, str(model), tmp_path / "out", small_config(**changes))
    assert not (tmp_path / "out").exists()
