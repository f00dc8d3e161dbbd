from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from ludus import grpo
from ludus.errors import RunError
from ludus.rollout.progress import PhaseProgress
from ludus.train.output.record import read_record
from train.grpo import killed_run
from train.grpo.toy_environments import PICK, read_episodes, small_config
from train.short_runs import RecordingProgress, read_curve

TIMING_METRICS = ("reused", *(f"time/{name}" for name in (
    "model", "environment", "decode", "rollout", "train", "step", "eval",
)))  # fmt: skip
"""Metrics that depend on timing."""


def read_metrics(out: Path) -> list[dict[str, float]]:
    """The log, with the reward of each held-out task under a name of its own."""
    lines = []
    for line in read_curve(out):
        rewards = {
            name: line.pop(name) for name in ("eval_rewards", "fresh_rewards") if name in line
        }
        for name, values in rewards.items():
            line |= {f"{name}/{at}": value for at, value in enumerate(values)}
        lines.append({name: line[name] for name in line if name not in TIMING_METRICS})
    return lines


def test_a_stopped_run_resumes_to_the_same_result(model: Path, tmp_path: Path) -> None:
    config = small_config(steps=5, groups=2, group_size=4)
    whole = grpo(PICK, str(model), tmp_path / "whole", config)
    first = grpo(
        PICK, str(model), tmp_path / "parts", config, progress=RecordingProgress(stop_after=2)
    )
    assert first.stopped == "interrupted" and first.steps == 2
    assert (tmp_path / "parts" / "model.safetensors").exists()
    second = grpo(PICK, str(model), tmp_path / "parts", config)
    assert (second.resumed_from, second.steps) == (2, whole.steps)
    one, other = read_metrics(tmp_path / "whole"), read_metrics(tmp_path / "parts")
    assert [line.keys() for line in one] == [line.keys() for line in other]
    for a, b in zip(one, other, strict=True):
        assert a == pytest.approx(b, rel=1e-4, abs=1e-7)
    episodes = [
        [(episode.episode_id, episode.messages) for episode in read_episodes(out)]
        for out in (tmp_path / "whole", tmp_path / "parts")
    ]
    assert episodes[0] == episodes[1]
    again = grpo(PICK, str(model), tmp_path / "parts", config)
    assert again.steps == 5 and again.resumed_from is None


def test_episodes_after_the_checkpoint_are_played_again(model: Path, tmp_path: Path) -> None:
    config = small_config(steps=3)
    grpo(PICK, str(model), tmp_path / "out", config, progress=RecordingProgress(stop_after=1))
    file = tmp_path / "out" / "episodes.jsonl"
    # As if it had been killed in the middle of the next step.
    lines = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(b"".join(lines) + lines[-1].replace(b'"step":1', b'"step":2') + b'{"half')
    grpo(PICK, str(model), tmp_path / "out", config)
    steps = [json.loads(line)["agent"]["step"] for line in file.read_text().splitlines()]
    assert steps == [step for step in (1, 2, 3) for _ in range(8)]


def test_a_damaged_checkpoint_is_not_used_but_the_one_before(model: Path, tmp_path: Path) -> None:
    config, out = small_config(steps=4, checkpoint_every=0.0), tmp_path / "out"
    grpo(PICK, str(model), out, config, progress=RecordingProgress(stop_after=3))
    (out / "checkpoints" / "checkpoint-3" / "optimizer.pt").write_bytes(b"")
    assert grpo(PICK, str(model), out, config).resumed_from == 2
    lines = (out / "episodes.jsonl").read_text().splitlines()
    steps = [json.loads(line)["agent"]["step"] for line in lines]
    assert steps == [step for step in (1, 2, 3, 4) for _ in range(8)]


@pytest.mark.slow
def test_a_killed_run_resumes_to_the_same_result(model: Path, tmp_path: Path) -> None:
    paths = (str(Path(killed_run.__file__).parents[2]), *sys.path)
    died = subprocess.run(
        [sys.executable, killed_run.__file__, str(model), str(tmp_path / "parts"), "4"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        timeout=110,
        check=False,
    )
    assert died.returncode == -signal.SIGKILL, died.stderr
    grpo(PICK, str(model), tmp_path / "whole", killed_run.config())
    result = grpo(PICK, str(model), tmp_path / "parts", killed_run.config())
    assert result.resumed_from == 3 and result.steps == 5
    one, other = read_metrics(tmp_path / "whole"), read_metrics(tmp_path / "parts")
    assert [line.keys() for line in one] == [line.keys() for line in other]
    for a, b in zip(one, other, strict=True):
        assert a == pytest.approx(b, rel=1e-4, abs=1e-7)
    names = [
        [episode.episode_id for episode in read_episodes(tmp_path / run)]
        for run in ("whole", "parts")
    ]
    assert names[0] == names[1]


@pytest.mark.parametrize("limit", ["time", "Ctrl-C"])
def test_a_run_that_is_cut_off_has_a_model_and_a_verdict_and_goes_on(
    model: Path, tmp_path: Path, limit: str
) -> None:
    settings = {"steps": 3, "eval_every": 2, "eval_episodes": 6}
    minutes = 0.001 if limit == "time" else None
    first, out = RecordingProgress(None if minutes else 1), tmp_path / "out"
    result = grpo(PICK, str(model), out, small_config(**settings, minutes=minutes), progress=first)
    assert (result.stopped, result.steps) == (None if minutes else "interrupted", 1)
    assert (out / "model.safetensors").is_file() and (out / "README.md").is_file()
    record = read_record(out)
    assert record is not None and record.comparison is not None
    assert not record.is_finished and (record.metrics is not None) == (limit == "time")
    assert any(str(record.comparison) in text for text in first.messages)

    again = grpo(PICK, str(model), out, small_config(**settings))
    assert (again.steps, again.resumed_from) == (3, 1)
    record = read_record(out)
    assert record is not None and record.is_finished and record.comparison is not None
    rewards = [line["step"] for line in read_curve(out) if "reward" in line]
    assert rewards == [1, 2, 3]


class InterruptAtFirstStep(RecordingProgress):
    def step(self, line: Mapping[str, Any]) -> None:
        if line["step"] == 1:
            raise KeyboardInterrupt


def test_a_run_without_a_checkpoint_restarts_its_log(model: Path, tmp_path: Path) -> None:
    config, out = small_config(steps=2, eval_every=1, eval_episodes=2), tmp_path / "out"
    with pytest.raises(KeyboardInterrupt):
        grpo(PICK, str(model), out, config, progress=InterruptAtFirstStep())
    assert [line["step"] for line in read_curve(out)] == [0, 0, 1]
    assert grpo(PICK, str(model), out, config).resumed_from is None
    evaluated = [line["step"] for line in read_curve(out) if "eval_rewards" in line]
    assert evaluated == [0, 1, 2]


class InterruptAtTheEnd(RecordingProgress):
    def phase(self, progress: PhaseProgress) -> None:
        if "at the end" in progress.phase:
            raise KeyboardInterrupt


def test_a_run_that_was_interrupted_after_its_last_step_is_concluded(
    model: Path, tmp_path: Path
) -> None:
    config = small_config(steps=2, eval_every=2, eval_episodes=6, keep="last")
    with pytest.raises(KeyboardInterrupt):
        grpo(PICK, str(model), tmp_path / "out", config, progress=InterruptAtTheEnd())
    assert not (tmp_path / "out" / "model.safetensors").exists()
    result = grpo(PICK, str(model), tmp_path / "out", config)
    assert (result.steps, result.resumed_from) == (2, 2)
    record = read_record(tmp_path / "out")
    assert record is not None and record.is_finished and record.comparison is not None
    assert (tmp_path / "out" / "model.safetensors").exists()


def test_another_environment_in_the_same_folder_raises(model: Path, tmp_path: Path) -> None:
    grpo(
        PICK,
        str(model),
        tmp_path / "out",
        small_config(steps=2),
        progress=RecordingProgress(stop_after=1),
    )
    with pytest.raises(RunError, match="environment"):
        grpo("echo", str(model), tmp_path / "out", small_config(steps=2))
    with pytest.raises(RunError, match="temperature"):
        grpo(PICK, str(model), tmp_path / "out", small_config(steps=2, temperature=0.5))
