"""Direct preference optimization, with and without precomputed reference log-probabilities."""

from __future__ import annotations

import json
from math import log
from pathlib import Path
from typing import Any

import pytest
from policy.models import saved

from ludus import dpo
from ludus.train import Lora
from train.sample_rows import dpo_row, write_jsonl
from train.short_runs import RecordingProgress, read_curve, same_curve, train_config


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(saved(tmp_path_factory.mktemp("base")))


def data(folder: Path, test: int = 0) -> Path:
    write_jsonl(folder / "train.jsonl", map(dpo_row, range(6)))
    if test:
        write_jsonl(folder / "test.jsonl", map(dpo_row, range(50, 50 + test)))
    return folder


@pytest.mark.parametrize(
    "fields",
    [{}, {"lora": Lora(rank=4)}, {"overrides": {"precompute_ref_log_probs": "false"}}],
    ids=["precomputed", "adapter", "reference model"],
)
def test_the_chosen_side_becomes_likelier_than_under_the_base_model(
    tmp_path: Path, base: str, fields: dict[str, Any]
) -> None:
    out = tmp_path / "out"
    dpo(data(tmp_path / "d"), base, out, train_config(epochs=2, learning_rate=1e-2, **fields))
    lines = read_curve(out)
    # Before the first update the model equals its reference.
    assert lines[0]["loss"] == pytest.approx(log(2), abs=1e-5)
    assert lines[-1]["loss"] < lines[0]["loss"] and lines[-1]["rewards/margins"] > 0
    assert all(type(line["tokens"]) is int for line in lines)
    assert not (out / "tokens").exists() and (out / "model.safetensors").is_file()


def test_the_eval_loss_is_measured_on_test_pairs(tmp_path: Path, base: str) -> None:
    out = tmp_path / "out"
    dpo(data(tmp_path / "d", test=2), base, out, train_config(beta=0.5))
    record = json.loads((out / "training.json").read_text())
    assert record["kind"] == "dpo" and record["config"]["beta"] == 0.5
    assert record["metrics"]["eval_loss"] == read_curve(out)[-1]["eval_loss"] > 0


@pytest.mark.parametrize("lora", [None, Lora(rank=4)], ids=["whole", "adapter"])
def test_a_resumed_run_has_the_same_reference(tmp_path: Path, base: str, lora: Lora | None) -> None:
    rows, config = data(tmp_path / "d"), train_config(epochs=2, learning_rate=1e-2, lora=lora)
    out, one = tmp_path / "out", tmp_path / "one"
    assert (
        dpo(rows, base, out, config, progress=RecordingProgress(stop_after=2)).stopped
        == "interrupted"
    )
    assert dpo(rows, base, out, config).resumed_from == 2
    dpo(rows, base, one, config)
    assert same_curve(read_curve(out), read_curve(one), lambda x: pytest.approx(x, abs=1e-6))
    weights = [(run / "model.safetensors").read_bytes() for run in (out, one)]
    assert weights[0] == weights[1]
