"""Training with several processes under `accelerate launch`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from policy.models import saved

from ludus import dpo, sft
from ludus.train import Lora
from train.sample_rows import dpo_row, sft_data, write_jsonl
from train.short_runs import read_curve, train_config

DDP = ("--multi_gpu", "-m", "ludus")
"""Also starts several processes on CPUs."""
FSDP = (
    *("--use_fsdp", "--fsdp_version", "2", "--fsdp_auto_wrap_policy", "TRANSFORMER_BASED_WRAP"),
    *("-m", "train.fsdp_on_cpus"),
)


def launch(
    processes: int, *arguments: object, program: tuple[str, ...] = DDP
) -> subprocess.CompletedProcess[str]:
    """`accelerate launch -m ludus ...`"""
    launcher = (sys.executable, "-m", "accelerate.commands.launch")
    options = ("--num_processes", str(processes), "--main_process_port", "0")
    return subprocess.run(
        [*launcher, *options, *program, *map(str, arguments)],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )


QUICK = (
    *("--device", "cpu", "--precision", "fp32", "--batch-size", 2, "--learning-rate", 0.01),
    *("--report-to", "none"),
)


@pytest.mark.slow
def test_two_processes_train_as_one_with_twice_the_batch(tmp_path: Path) -> None:
    base, data = str(saved(tmp_path / "base")), sft_data(tmp_path / "d", rows=8, test=2)
    process = launch(
        2, "train", "sft", data, "--model", base, "-o", tmp_path / "two", *QUICK, "--epochs", 2,
        "--checkpoint-every", "1s",
    )  # fmt: skip
    assert process.returncode == 0, process.stderr
    sft(data, base, tmp_path / "one", train_config(batch_size=4, epochs=2, learning_rate=1e-2))

    one, two = read_curve(tmp_path / "one"), read_curve(tmp_path / "two")
    assert [line["step"] for line in two] == [1, 2, 2, 3, 4, 4]
    for line, other in zip(one, two, strict=True):
        assert line == pytest.approx(other, rel=1e-3)
    names = [{path.name for path in (tmp_path / run).iterdir()} for run in ("one", "two")]
    assert names[0] == names[1]
    record = json.loads((tmp_path / "two" / "training.json").read_text())
    assert len(record["devices"]) == 2 and record["metrics"]["steps"] == 4


@pytest.mark.slow
def test_two_processes_train_an_adapter_with_dpo(tmp_path: Path) -> None:
    base = str(saved(tmp_path / "base"))
    data = write_jsonl(tmp_path / "d" / "train.jsonl", map(dpo_row, range(8)))
    process = launch(
        2, "train", "dpo", data, "--model", base, "-o", tmp_path / "two", *QUICK,
        "--lora", "r=4",
    )  # fmt: skip
    assert process.returncode == 0, process.stderr
    config = train_config(batch_size=4, learning_rate=1e-2, lora=Lora(rank=4))
    dpo(data, base, tmp_path / "one", config)
    one, two = read_curve(tmp_path / "one"), read_curve(tmp_path / "two")
    assert [line["loss"] for line in two] == pytest.approx([line["loss"] for line in one], rel=1e-3)
    assert (tmp_path / "two" / "adapter" / "adapter_model.safetensors").is_file()


@pytest.mark.slow
def test_an_error_of_the_main_process_is_printed_once(tmp_path: Path) -> None:
    base, out = str(saved(tmp_path / "base")), tmp_path / "out"
    data = write_jsonl(tmp_path / "rows.jsonl", [{"messages": 3}])
    process = launch(2, "train", "sft", data, "--model", base, "-o", out, *QUICK)
    assert process.returncode == 1 and not out.exists()
    assert process.stderr.count("rows.jsonl:1 ") == 1
    # The launcher prints a traceback of its own.
    assert "ludus/train" not in process.stderr and "ludus/cli" not in process.stderr
