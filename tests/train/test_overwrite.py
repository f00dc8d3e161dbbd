"""An existing run is kept when a new one in its folder cannot start."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from policy.models import adapted, saved

from ludus import sft
from ludus.data.files import LOCK_FILE
from ludus.errors import ConfigError, LudusError, MissingExtra, RunError
from ludus.train.output import training_folder
from ludus.train.output.checkpoints import CheckpointState, mark_complete
from ludus.train.output.record import create_record
from train.sample_records import record_fields
from train.sample_rows import sft_data, write_jsonl
from train.short_runs import RecordingProgress, train_config

REJECTED_LATE = {"lr_scheduler_type": "cosine_with_min_lr"}
"""Accepted by the config and rejected when training starts: the schedule needs arguments."""


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(saved(tmp_path_factory.mktemp("base")))


def files(out: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in out.rglob("*") if path.is_file()}


def test_a_model_is_never_overwritten_by_one_trained_from_it(tmp_path: Path, base: str) -> None:
    data, out = sft_data(tmp_path / "d", rows=2), tmp_path / "out"
    sft(data, base, out, train_config())
    before, adapter = files(out), adapted(tmp_path / "adapter", out)
    for model in (out, out.parent / "d" / ".." / "out", adapter):
        with pytest.raises(RunError, match="overwritten"):
            sft(data, str(model), out, train_config(), overwrite=True)
    assert files(out) == before
    assert sft(data, str(out), out / "next", train_config()).steps == 1, "a folder below it is free"


@pytest.mark.parametrize(
    ("rows", "overrides", "culprit"),
    [
        ([{"messages": 3}], {}, "messages"),
        (None, REJECTED_LATE, "min_lr"),
    ],
    ids=["rows", "settings"],
)
def test_a_run_that_cannot_start_leaves_the_earlier_model(
    tmp_path: Path, base: str, rows: Any, overrides: Mapping[str, str], culprit: str
) -> None:
    data, out = sft_data(tmp_path / "d", rows=2), tmp_path / "out"
    sft(data, base, out, train_config())
    before = files(out)
    if rows:
        write_jsonl(data / "train.jsonl", rows)
    with pytest.raises(ConfigError, match=culprit):
        sft(data, base, out, train_config(overrides=overrides), overwrite=True)
    assert files(out) == before and not (out / "checkpoints").exists()


def test_a_stopped_run_survives_one_that_cannot_start(tmp_path: Path, base: str) -> None:
    data, out = sft_data(tmp_path / "d"), tmp_path / "out"
    sft(data, base, out, train_config(), progress=RecordingProgress(stop_after=2))
    with pytest.raises(ConfigError, match="min_lr"):
        sft(data, base, out, train_config(overrides=REJECTED_LATE), overwrite=True)
    assert sft(data, base, out, train_config()).resumed_from == 2


def test_other_weights_under_the_same_name_are_another_run(tmp_path: Path) -> None:
    data, out = sft_data(tmp_path / "d"), tmp_path / "out"
    model = str(saved(tmp_path / "base"))
    sft(data, model, out, train_config(), progress=RecordingProgress(stop_after=1))
    saved(tmp_path / "base", seed=1)
    with pytest.raises(RunError, match="weights"):
        sft(data, model, out, train_config())


def test_the_leftovers_of_a_run_without_a_record_are_ignored(tmp_path: Path, base: str) -> None:
    data, out = sft_data(tmp_path / "d", rows=2), tmp_path / "out"
    incomplete = out / "checkpoints" / "checkpoint-3"
    for path in (incomplete, out / "tokens"):
        path.mkdir(parents=True)
    for name in (LOCK_FILE, ".training.json.7.draft"):
        (out / name).touch()
    training_folder.check_output_dir(out)
    mark_complete(incomplete, CheckpointState(3))
    with pytest.raises(RunError, match=r"training\.json"):
        sft(data, base, out, train_config())
    (incomplete / "state.json").unlink()
    assert sft(data, base, out, train_config()).steps == 1


def test_a_record_without_a_step_can_be_replaced(tmp_path: Path, base: str) -> None:
    data, out = sft_data(tmp_path / "d", rows=2), tmp_path / "out"
    out.mkdir()
    create_record(out, record_fields(model="another"))
    assert sft(data, base, out, train_config()).steps == 1


class TensorBoardFolder(RecordingProgress):
    """Records where TensorBoard would write."""

    folder: str | None = None

    def begin(self, total_steps: int, resumed_from: int | None) -> None:
        self.folder = os.environ.get("TENSORBOARD_LOGGING_DIR")
        Path(self.folder or "").mkdir()


def test_tensorboard_logs_lie_in_the_output_folder_and_are_removed_with_it(
    tmp_path: Path, base: str
) -> None:
    data, out, progress = sft_data(tmp_path / "d", rows=2), tmp_path / "out", TensorBoardFolder()
    sft(data, base, out, train_config(), progress=progress)
    assert progress.folder == str(out / "runs") and (out / "runs").is_dir()
    assert "TENSORBOARD_LOGGING_DIR" not in os.environ
    sft(data, base, out, train_config(epochs=2), overwrite=True)
    assert not (out / "runs").exists()


def test_packages_that_are_needed_at_the_end_are_checked_at_the_start(
    tmp_path: Path, base: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(MissingExtra, match="Training"):
        sft(sft_data(tmp_path / "d"), base, tmp_path / "out", train_config())
    assert not (tmp_path / "out").exists()


class FailingProgress(RecordingProgress):
    """Raises when training starts."""

    def begin(self, total_steps: int, resumed_from: int | None) -> None:
        raise LudusError("No.")


def test_an_error_of_the_progress_comes_before_anything_is_removed(
    tmp_path: Path, base: str
) -> None:
    data, out = sft_data(tmp_path / "d", rows=2), tmp_path / "out"
    sft(data, base, out, train_config())
    before = files(out)
    with pytest.raises(LudusError, match="No"):
        sft(data, base, out, train_config(epochs=2), overwrite=True, progress=FailingProgress())
    assert files(out) == before
