"""Resuming runs that were stopped or killed, and checkpoints that are incomplete."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from policy.models import saved

from ludus import sft
from ludus.errors import RunError
from ludus.train.output import checkpoints
from ludus.train.output.checkpoints import (
    CheckpointState,
    latest_checkpoint,
    mark_complete,
    read_state,
    remove_unusable,
)
from ludus.train.output.record import create_record, read_record
from ludus.train.resume import check_same_run
from train import killed_run
from train.sample_records import record_fields
from train.sample_rows import sft_data
from train.short_runs import (
    RecordingProgress,
    read_curve,
    same_curve,
    train_config,
)


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(saved(tmp_path_factory.mktemp("base")))


def weights(folder: Path) -> bytes:
    return (folder / "model.safetensors").read_bytes()


def kill_at(step: int, case: str, *arguments: object) -> None:
    tests = str(Path(killed_run.__file__).parents[1])
    process = subprocess.run(
        [sys.executable, killed_run.__file__, *map(str, arguments), str(step), case],
        env={**os.environ, "PYTHONPATH": tests, "OMP_NUM_THREADS": "1"},
        timeout=100,
        check=False,
    )
    assert process.returncode == -signal.SIGKILL


@pytest.mark.slow
@pytest.mark.parametrize(
    ("case", "step"), [("whole", 6), pytest.param("adapter", 5, marks=pytest.mark.slow)]
)
def test_a_killed_run_resumes_to_the_same_result(
    tmp_path: Path, base: str, case: str, step: int
) -> None:
    data, out = sft_data(tmp_path / "d", rows=8, test=2 if case == "whole" else 0), tmp_path / "out"
    kill_at(step, case, data, base, out)
    assert read_curve(out)[-1]["step"] == step
    checkpoint = latest_checkpoint(out)
    assert checkpoint is not None and checkpoint.name == f"checkpoint-{step - 1}"
    # A checkpoint that was being written when the process died.
    (out / "checkpoints" / "checkpoint-99").mkdir()

    progress = RecordingProgress()
    result = sft(data, base, out, killed_run.config(case), progress=progress)
    assert result.resumed_from == step - 1 and progress.started == (result.steps, step - 1)
    undisturbed = sft(data, base, tmp_path / "one", killed_run.config(case))
    assert same_curve(
        read_curve(out), read_curve(tmp_path / "one"), lambda x: pytest.approx(x, abs=1e-6)
    )
    assert weights(out) == weights(tmp_path / "one")
    assert all(type(line["tokens"]) is int for line in progress.lines if "loss" in line)
    assert result.tokens == undisturbed.tokens and result.steps == undisturbed.steps
    assert not (out / "checkpoints").exists()


@pytest.mark.parametrize("after", [3, 4], ids=["within an epoch", "at its end"])
def test_a_stopped_run_leaves_a_checkpoint_and_resumes(
    tmp_path: Path, base: str, after: int
) -> None:
    data, config = (
        sft_data(tmp_path / "d", rows=8, test=2),
        train_config(epochs=2, checkpoint_every=0.0),
    )
    out, progress = tmp_path / "out", RecordingProgress(stop_after=after)
    stopped = sft(data, base, out, config, progress=progress)
    assert (stopped.stopped, stopped.steps) == ("interrupted", after)
    record = read_record(out)
    assert (out / "model.safetensors").exists() and record is not None and not record.is_finished
    assert read_curve(out)[-1]["step"] == after
    kept = {path.name for path in (out / "checkpoints").iterdir()}
    assert kept == {f"checkpoint-{step}" for step in (after - 1, after)}

    done = sft(data, base, out, config)
    assert (done.stopped, done.steps, done.resumed_from) == (None, 8, after)
    sft(data, base, tmp_path / "one", config)
    assert same_curve(
        read_curve(out), read_curve(tmp_path / "one"), lambda x: pytest.approx(x, abs=1e-6)
    )
    assert weights(out) == weights(tmp_path / "one")


def test_a_run_that_is_out_of_time_ends_with_a_model_and_goes_on(tmp_path: Path, base: str) -> None:
    data, out = sft_data(tmp_path / "d", rows=8, test=2), tmp_path / "out"
    limited = sft(data, base, out, train_config(epochs=2, minutes=0.001))
    assert (limited.stopped, limited.steps) == (None, 1)
    record = read_record(out)
    assert record is not None and record.metrics is not None
    assert record.metrics.stopped == "out of time" and (out / "README.md").exists()

    done = sft(data, base, out, train_config(epochs=2))
    assert (done.steps, done.resumed_from) == (8, 1)
    record = read_record(out)
    assert record is not None and record.is_finished
    sft(data, base, tmp_path / "one", train_config(epochs=2))
    assert weights(out) == weights(tmp_path / "one")


def test_a_checkpoint_is_complete_when_its_state_file_is(tmp_path: Path) -> None:
    for step in (2, 10, 11):
        (tmp_path / checkpoints.CHECKPOINTS_DIR / f"checkpoint-{step}").mkdir(parents=True)
    assert latest_checkpoint(tmp_path) is None
    state = CheckpointState(10, tokens=7, loss=0.5, logged=9, metrics={"entropy": [1.0]})
    folder = tmp_path / checkpoints.CHECKPOINTS_DIR
    mark_complete(folder / "checkpoint-10", state)
    mark_complete(folder / "checkpoint-2", CheckpointState(2))
    (folder / "checkpoint-11" / "state.json").write_text('{"step": 11')
    assert latest_checkpoint(tmp_path) == folder / "checkpoint-10"
    assert read_state(folder / "checkpoint-10") == state
    remove_unusable(tmp_path, 10)
    assert {path.name for path in folder.iterdir()} == {"checkpoint-2", "checkpoint-10"}


def cut_in_half(file: Path) -> None:
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


DAMAGES = {
    "cut off": (cut_in_half, "trainer_state.json"),
    "missing": (Path.unlink, "optimizer.pt"),
    "unreadable": (cut_in_half, "state.json"),
}


@pytest.fixture(scope="module")
def stopped(base: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was stopped after its third step of four, with two checkpoints."""
    folder = tmp_path_factory.mktemp("stopped")
    config, progress = train_config(checkpoint_every=0.0), RecordingProgress(stop_after=3)
    sft(sft_data(folder / "d", rows=8), base, folder / "out", config, progress=progress)
    return folder


@pytest.mark.parametrize(("damage", "name"), DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_checkpoint_is_not_used_but_the_one_before(
    stopped: Path, base: str, tmp_path: Path, damage: Any, name: str
) -> None:
    folder = Path(shutil.copytree(stopped, tmp_path / "run"))
    out, config = folder / "out", train_config(checkpoint_every=0.0)
    damage(out / "checkpoints" / "checkpoint-3" / name)
    progress = RecordingProgress()
    assert sft(folder / "d", base, out, config, progress=progress).resumed_from == 2
    assert [line["step"] for line in read_curve(out)] == [1, 2, 3, 4]


def test_without_an_intact_checkpoint_a_run_starts_anew(
    stopped: Path, base: str, tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(stopped, tmp_path / "run"))
    for checkpoint in (folder / "out" / "checkpoints").iterdir():
        cut_in_half(checkpoint / "model.safetensors")
    progress, config = RecordingProgress(stop_after=1), train_config(checkpoint_every=0.0)
    result = sft(folder / "d", base, folder / "out", config, progress=progress)
    assert result.resumed_from is None
    kept = [path.name for path in (folder / "out" / "checkpoints").iterdir()]
    assert kept == ["checkpoint-1"]


class CheckpointBlocker(RecordingProgress):
    """Stops after two steps, and makes it impossible to save the second checkpoint."""

    def __init__(self, out: Path) -> None:
        super().__init__(stop_after=2)
        self.out = out

    def step(self, line: Mapping[str, Any]) -> None:
        super().step(line)
        file = self.out / "checkpoints" / "checkpoint-2" / "model.safetensors"
        file.mkdir(parents=True, exist_ok=True)


def test_a_checkpoint_that_cannot_be_saved_raises(tmp_path: Path, base: str) -> None:
    data, out = sft_data(tmp_path / "d", rows=8), tmp_path / "out"
    with pytest.raises(RunError, match="step 2"):
        sft(data, base, out, train_config(), progress=CheckpointBlocker(out))
    result = sft(data, base, out, train_config())
    assert result.resumed_from is None and weights(out)


def test_only_a_run_with_the_same_decisive_settings_is_the_same(tmp_path: Path) -> None:
    check_same_run(tmp_path, record_fields())
    create_record(tmp_path, record_fields())
    check_same_run(tmp_path, record_fields())
    elsewhere = {**record_fields()["settings"], "device": "cuda"}
    moved = {**record_fields()["data"], "path": "copies/wordle"}
    check_same_run(tmp_path, record_fields(settings=elsewhere, data=moved))
    logged = {**record_fields()["settings"], "overrides": {"logging_steps": "5"}}
    check_same_run(tmp_path, record_fields(settings=logged))
    for changed, difference in (
        (record_fields(model="other"), 'model: .*"smollm2".*"other"'),
        (
            record_fields(data={**record_fields()["data"], "digest": "cd" * 32}),
            r"data\.digest: .*abab.*cdcd",
        ),
        (record_fields(settings={**record_fields()["settings"], "epochs": 4}), "epochs: 3 .*4"),
        (record_fields(settings={**logged, "overrides": {"optim": "sgd"}}), "optim: .*sgd"),
    ):
        with pytest.raises(RunError, match=difference) as caught:
            check_same_run(tmp_path, changed)
        assert "`overwrite`" in str(caught.value) and "\n" not in str(caught.value)
