from __future__ import annotations

import json
from math import log
from pathlib import Path
from typing import Any

import pytest
from policy.models import saved

from ludus import dpo
from ludus.train import Lora
from train.lessons import Seen, curve, dpo_row, quick, same, write


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(saved(tmp_path_factory.mktemp("base")))


def data(folder: Path, test: int = 0) -> Path:
    write(folder / "train.jsonl", map(dpo_row, range(6)))
    if test:
        write(folder / "test.jsonl", map(dpo_row, range(50, 50 + test)))
    return folder


@pytest.mark.parametrize(
    "more",
    [{}, {"lora": Lora(rank=4)}, {"overrides": {"precompute_ref_log_probs": "false"}}],
    ids=["beforehand", "adapter", "beside"],
)
def test_the_better_side_becomes_likelier_than_the_base_had_it(
    tmp_path: Path, base: str, more: dict[str, Any]
) -> None:
    out = tmp_path / "out"
    dpo(data(tmp_path / "d"), base, out, quick(epochs=2, learning_rate=1e-2, **more))
    lines = curve(out)
    # Before the first step a model is its own reference.
    assert lines[0]["loss"] == pytest.approx(log(2), abs=1e-5)
    assert lines[-1]["loss"] < lines[0]["loss"] and lines[-1]["rewards/margins"] > 0
    assert all(type(line["tokens"]) is int for line in lines)
    assert not (out / "tokens").exists() and (out / "model.safetensors").is_file()


def test_a_pair_of_test_rows_is_measured_on(tmp_path: Path, base: str) -> None:
    out = tmp_path / "out"
    dpo(data(tmp_path / "d", test=2), base, out, quick(beta=0.5))
    told = json.loads((out / "training.json").read_text())
    assert told["kind"] == "dpo" and told["config"]["beta"] == 0.5
    assert told["figures"]["eval_loss"] == curve(out)[-1]["eval_loss"] > 0


@pytest.mark.parametrize("lora", [None, Lora(rank=4)], ids=["whole", "adapter"])
def test_a_run_that_was_stopped_compares_with_the_same_base_when_it_goes_on(
    tmp_path: Path, base: str, lora: Lora | None
) -> None:
    rows, settings = data(tmp_path / "d"), quick(epochs=2, learning_rate=1e-2, lora=lora)
    out, one = tmp_path / "out", tmp_path / "one"
    assert dpo(rows, base, out, settings, progress=Seen(stop_after=2)).stopped == "interrupted"
    assert dpo(rows, base, out, settings).resumed_from == 2
    dpo(rows, base, one, settings)
    assert same(curve(out), curve(one), lambda x: pytest.approx(x, abs=1e-6))
    weights = [(run / "model.safetensors").read_bytes() for run in (out, one)]
    assert weights[0] == weights[1]
