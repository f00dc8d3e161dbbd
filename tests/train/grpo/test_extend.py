"""A finished run with more steps is extended from its last checkpoint."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from ludus import grpo
from ludus.errors import RunError
from ludus.train.output.record import read_record
from train.grpo.toy_environments import PICK, read_episodes, small_config
from train.short_runs import RecordingProgress, read_curve


def learning_rates(out: Path) -> list[float]:
    return [line["learning_rate"] for line in read_curve(out)]


@pytest.mark.slow
def test_a_finished_run_is_extended_under_the_longer_schedule(model: Path, tmp_path: Path) -> None:
    out, seen = tmp_path / "out", RecordingProgress()
    # The measured divergence of a step would scale the rates of the next ones.
    grpo(PICK, str(model), out, small_config(steps=2, target_kl=0))
    (checkpoint,) = (out / "checkpoints").iterdir()
    assert checkpoint.name == "checkpoint-2" and (checkpoint / "optimizer.pt").exists()
    result = grpo(PICK, str(model), out, small_config(steps=4, target_kl=0), progress=seen)
    assert (result.resumed_from, result.steps, result.stopped) == (2, 4, None)
    (line,) = (text for text in seen.messages if text.startswith("Extending"))
    assert "2" in line and "4" in line
    assert [line["step"] for line in read_curve(out)] == [1, 2, 3, 4]
    grpo(PICK, str(model), tmp_path / "whole", small_config(steps=4, target_kl=0))
    assert learning_rates(out)[2:] == pytest.approx(learning_rates(tmp_path / "whole")[2:])
    assert learning_rates(out)[2] > 0
    ids = [
        [episode.episode_id for episode in read_episodes(folder)]
        for folder in (out, tmp_path / "whole")
    ]
    assert ids[0] == ids[1], "the tasks are those of a run with four steps from the start"
    record = read_record(out)
    assert record is not None and record.metrics is not None
    assert (record.extended_from, record.resumed_from) == ((2,), (2,))
    assert "| 2 steps |" in (out / "README.md").read_text()


def test_a_stopped_run_can_be_extended_but_not_shortened(model: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    grpo(PICK, str(model), out, small_config(steps=3), progress=RecordingProgress(stop_after=1))
    assert grpo(PICK, str(model), out, small_config(steps=4)).resumed_from == 1
    with pytest.raises(RunError, match=r"steps: 4 .*3 "):
        grpo(PICK, str(model), out, small_config(steps=3))
    with pytest.raises(RunError, match="temperature"):
        grpo(PICK, str(model), out, small_config(steps=9, temperature=0.5))


def test_a_finished_run_without_its_checkpoint_cannot_be_extended(
    model: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    grpo(PICK, str(model), out, small_config(steps=1))
    shutil.rmtree(out / "checkpoints")
    with pytest.raises(RunError, match=f"`model` to {out}"):
        grpo(PICK, str(model), out, small_config(steps=2))
    assert grpo(PICK, str(model), out, small_config(steps=1)).steps == 1, (
        "the finished run is as it was"
    )
