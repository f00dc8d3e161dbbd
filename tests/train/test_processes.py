"""Several processes that train together, as a launcher starts them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from policy.models import saved

from ludus.train import sft
from train.lessons import curve, quick, sft_data


def launch(processes: int, *arguments: object) -> None:
    """`accelerate launch -m ludus ...`; its --multi_gpu says several processes, and not of what."""
    launcher = (sys.executable, "-m", "accelerate.commands.launch", "--multi_gpu")
    where = ("--num_processes", str(processes), "--main_process_port", "0")
    found = subprocess.run(
        [*launcher, *where, "-m", "ludus", *map(str, arguments)],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert found.returncode == 0, found.stderr


def test_two_processes_train_as_one_with_twice_the_batch(tmp_path: Path) -> None:
    base, data = str(saved(tmp_path / "base")), sft_data(tmp_path / "d", rows=8, test=2)
    launch(
        2, "train", "sft", data, "--model", base, "-o", tmp_path / "two", "--device", "cpu",
        "--precision", "fp32", "--batch-size", 2, "--epochs", 2, "--learning-rate", 0.01,
        "--checkpoint-every", "1s", "--report-to", "none",
    )  # fmt: skip
    sft(data, base, tmp_path / "one", quick(batch_size=4, epochs=2, learning_rate=1e-2))

    one, two = curve(tmp_path / "one"), curve(tmp_path / "two")
    assert [line["step"] for line in two] == [1, 2, 2, 3, 4, 4]
    for line, other in zip(one, two, strict=True):
        assert line == pytest.approx(other, rel=1e-3)
    names = [{path.name for path in (tmp_path / run).iterdir()} for run in ("one", "two")]
    assert names[0] == names[1]
    told = json.loads((tmp_path / "two" / "training.json").read_text())
    assert len(told["devices"]) == 2 and told["figures"]["steps"] == 4
