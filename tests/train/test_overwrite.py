"""What is in the folder of a run is not lost to one that cannot begin."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from policy.models import adapted, saved

from ludus import sft
from ludus.errors import ConfigError, LudusError, MissingExtra, RunError
from ludus.train.output import training_folder
from ludus.train.output.checkpoints import CheckpointState, mark_complete
from ludus.train.output.record import create_record
from train.lessons import Seen, quick, sft_data, write
from train.records import about

WRONG = {"lr_scheduler_type": "cosine_with_min_lr"}
"""Taken by the config, and refused when training begins: the schedule wants arguments."""


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(saved(tmp_path_factory.mktemp("base")))


def files(out: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in out.rglob("*") if path.is_file()}


def test_a_model_is_never_written_over_by_what_is_made_from_it(tmp_path: Path, base: str) -> None:
    data, out = sft_data(tmp_path / "d", rows=2), tmp_path / "out"
    sft(data, base, out, quick())
    before, adapter = files(out), adapted(tmp_path / "adapter", out)
    for model in (out, out.parent / "d" / ".." / "out", adapter):
        with pytest.raises(RunError, match=r"lies in .*out, and would be written over"):
            sft(data, str(model), out, quick(), overwrite=True)
    assert files(out) == before
    assert sft(data, str(out), out / "next", quick()).steps == 1, "below it there is room"


@pytest.mark.parametrize(
    ("rows", "overrides", "said"),
    [
        ([{"messages": 3}], {}, "has no messages"),
        (None, WRONG, "cannot begin with these settings: .*min_lr"),
    ],
    ids=["rows", "settings"],
)
def test_what_cannot_begin_leaves_the_earlier_model(
    tmp_path: Path, base: str, rows: Any, overrides: Mapping[str, str], said: str
) -> None:
    data, out = sft_data(tmp_path / "d", rows=2), tmp_path / "out"
    sft(data, base, out, quick())
    before = files(out)
    if rows:
        write(data / "train.jsonl", rows)
    with pytest.raises(ConfigError, match=said):
        sft(data, base, out, quick(overrides=overrides), overwrite=True)
    assert files(out) == before and not (out / "checkpoints").exists()


def test_a_run_that_was_stopped_survives_one_that_cannot_begin(tmp_path: Path, base: str) -> None:
    data, out = sft_data(tmp_path / "d"), tmp_path / "out"
    sft(data, base, out, quick(), progress=Seen(stop_after=2))
    with pytest.raises(ConfigError, match="cannot begin"):
        sft(data, base, out, quick(overrides=WRONG), overwrite=True)
    assert sft(data, base, out, quick()).resumed_from == 2


def test_other_weights_under_the_same_name_are_another_model(tmp_path: Path) -> None:
    data, out = sft_data(tmp_path / "d"), tmp_path / "out"
    model = str(saved(tmp_path / "base"))
    sft(data, model, out, quick(), progress=Seen(stop_after=1))
    saved(tmp_path / "base", seed=1)
    with pytest.raises(RunError, match=r"other settings \(weights: .* there, .* here\)"):
        sft(data, model, out, quick())


def test_what_was_killed_before_its_record_was_written_is_nothing(
    tmp_path: Path, base: str
) -> None:
    data, out = sft_data(tmp_path / "d", rows=2), tmp_path / "out"
    half = out / "checkpoints" / "checkpoint-3"
    for path in (half, out / "tokens"):
        path.mkdir(parents=True)
    for name in (training_folder.LOCK_FILE, ".training.json.7.draft"):
        (out / name).touch()
    training_folder.check_output_dir(out)
    mark_complete(half, CheckpointState(3))
    with pytest.raises(RunError, match="holds no training of Ludus"):
        sft(data, base, out, quick())
    (half / "whole.json").unlink()
    assert sft(data, base, out, quick()).steps == 1


def test_a_record_without_a_step_binds_nobody(tmp_path: Path, base: str) -> None:
    data, out = sft_data(tmp_path / "d", rows=2), tmp_path / "out"
    out.mkdir()
    create_record(out, about(model="another"))
    assert sft(data, base, out, quick()).steps == 1


class Curves(Seen):
    """Sees where TensorBoard would write."""

    place: str | None = None

    def begin(self, total_steps: int, resumed_from: int | None) -> None:
        self.place = os.environ.get("TENSORBOARD_LOGGING_DIR")
        Path(self.place or "").mkdir()


def test_curves_lie_beside_the_model_and_go_with_it(tmp_path: Path, base: str) -> None:
    data, out, seen = sft_data(tmp_path / "d", rows=2), tmp_path / "out", Curves()
    sft(data, base, out, quick(), progress=seen)
    assert seen.place == str(out / "runs") and (out / "runs").is_dir()
    assert "TENSORBOARD_LOGGING_DIR" not in os.environ
    sft(data, base, out, quick(epochs=2), overwrite=True)
    assert not (out / "runs").exists()


def test_what_the_picture_needs_is_missed_at_the_beginning(
    tmp_path: Path, base: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(MissingExtra, match="Training"):
        sft(sft_data(tmp_path / "d"), base, tmp_path / "out", quick())
    assert not (tmp_path / "out").exists()


class Refusing(Seen):
    """As the Hub that does not take the model."""

    def begin(self, total_steps: int, resumed_from: int | None) -> None:
        raise LudusError("No.")


def test_who_watches_can_refuse_before_anything_is_removed(tmp_path: Path, base: str) -> None:
    data, out = sft_data(tmp_path / "d", rows=2), tmp_path / "out"
    sft(data, base, out, quick())
    before = files(out)
    with pytest.raises(LudusError, match="No"):
        sft(data, base, out, quick(epochs=2), overwrite=True, progress=Refusing())
    assert files(out) == before
