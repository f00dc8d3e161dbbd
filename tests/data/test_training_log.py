"""The log of a training run, `log.jsonl`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ludus.data.training_log import (
    append_log,
    log_points,
    read_log,
    summarize_training,
    truncate_log,
)


def log_steps(out: Path, *steps: int) -> list[dict[str, Any]]:
    lines = [{"step": step, "loss": 1 / step} for step in steps]
    for line in lines:
        append_log(out, line)
    return lines


def test_a_log_round_trips(tmp_path: Path) -> None:
    assert list(read_log(tmp_path)) == []
    assert log_steps(tmp_path, 1, 2, 3) == list(read_log(tmp_path))


@pytest.mark.parametrize("torn", [b'{"step": 4, "lo', b'{"step": 4}', b"\0\0"])
def test_a_torn_last_line_is_skipped_and_overwritten(torn: bytes, tmp_path: Path) -> None:
    log_steps(tmp_path, 1, 2, 3)
    with (tmp_path / "log.jsonl").open("ab") as file:
        file.write(torn)
    log_steps(tmp_path, 4, 5)
    assert [line["step"] for line in read_log(tmp_path)] == [1, 2, 3, 4, 5]
    assert [line["loss"] for line in read_log(tmp_path)][3:] == [1 / 4, 1 / 5]


def test_truncating_a_log_drops_the_lines_after_a_step(tmp_path: Path) -> None:
    log_steps(tmp_path, 1, 2, 3, 4)
    append_log(tmp_path, {"step": 4, "eval_loss": 0.5})
    truncate_log(tmp_path, 2)
    log_steps(tmp_path, 3)
    assert [line["step"] for line in read_log(tmp_path)] == [1, 2, 3]
    assert [file.name for file in tmp_path.iterdir()] == ["log.jsonl"]


def test_a_rollback_after_the_checkpoint_is_dropped(tmp_path: Path) -> None:
    log_steps(tmp_path, 1, 2)
    append_log(tmp_path, {"step": 2, "rollback_to": 1})
    truncate_log(tmp_path, 2)
    assert [line["step"] for line in read_log(tmp_path)] == [1, 2]


def test_truncating_a_log_to_the_start_leaves_it_empty(tmp_path: Path) -> None:
    truncate_log(tmp_path, 0)
    assert (tmp_path / "log.jsonl").read_bytes() == b""


def test_logged_values_are_those_of_one_metric() -> None:
    log: list[dict[str, Any]] = [
        {"step": 1, "loss": 2.0},
        {"step": 1, "eval_loss": 3.0},
        {"step": 2, "loss": None},
    ]
    assert log_points(log) == [(1, 2.0)] and log_points(log, "eval_loss") == [(1, 3.0)]


def test_a_training_is_summarized_from_its_record_or_its_log() -> None:
    log = [{"step": 1, "loss": 2.0, "reward": 0.25}, {"step": 3, "loss": 0.5, "reward": 0.5}]
    figures = {"steps": 40, "first_loss": 1.25, "last_loss": 0.125}
    assert summarize_training({"kind": "sft", "metrics": figures}, ()) == (
        "40 steps, loss 1.25 → 0.125"
    )
    assert summarize_training({"kind": "grpo"}, log) == "3 steps, reward 0.25 → 0.5"
    assert summarize_training({"kind": "dpo", "metrics": {"steps": 2}}, ()) == "2 steps"
    assert summarize_training({"kind": "sft"}, ()) == ""
