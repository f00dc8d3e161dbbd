"""Training that diverges: SFT and DPO stop, and the last good checkpoint stays."""

from __future__ import annotations

from pathlib import Path

import pytest
from policy.models import saved, tiny
from safetensors.torch import load_file
from tiny_tokenizers import student

from ludus import dpo, sft
from ludus.errors import TrainingDiverged
from ludus.train import Lora
from ludus.train.output.checkpoints import latest_checkpoint
from train.sample_rows import dpo_row, sft_data, write_jsonl
from train.short_runs import read_curve, train_config

TOO_HIGH = 1e38
"""After one step at this learning rate the weights are finite, and the next loss is not."""
INFINITE_AFTER = 1e39
"""No float32 number: after one step at this learning rate the weights are infinite."""
SECOND_STEP = {"warmup_steps": "1", "lr_scheduler_type": "constant_with_warmup"}
"""The first step has a learning rate of 0."""


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(saved(tmp_path_factory.mktemp("base")))


@pytest.mark.parametrize("lora", [None, Lora(rank=2)], ids=["whole", "adapter"])
def test_sft_stops_at_the_first_loss_that_is_not_finite(
    tmp_path: Path, base: str, lora: Lora | None
) -> None:
    out, config = tmp_path / "out", train_config(learning_rate=TOO_HIGH, lora=lora)
    with pytest.raises(TrainingDiverged, match=r"step 2: .*`learning_rate` \(1e\+38\)") as caught:
        sft(sft_data(tmp_path / "d"), base, out, config)
    assert "\n" not in str(caught.value)
    assert [line["step"] for line in read_curve(out)] == [1]
    assert not (out / "model.safetensors").exists()


def test_sft_stops_at_a_gradient_that_is_not_finite_though_the_loss_is(tmp_path: Path) -> None:
    base, tokenizer = tmp_path / "base", student()
    model = tiny(tokenizer)
    model.model.norm.weight.data *= 1e22  # The square of such a gradient is no float32 number.
    model.save_pretrained(base)
    tokenizer.save_pretrained(base)
    with pytest.raises(TrainingDiverged, match="step 1: the norm of the gradient is not finite"):
        sft(sft_data(tmp_path / "d"), str(base), tmp_path / "out", train_config())


def test_dpo_stops_at_the_first_loss_that_is_not_finite(tmp_path: Path, base: str) -> None:
    rows, out = write_jsonl(tmp_path / "rows.jsonl", map(dpo_row, range(6))), tmp_path / "out"
    with pytest.raises(TrainingDiverged, match="step 2: "):
        dpo(rows, base, out, train_config(learning_rate=TOO_HIGH))
    assert [line["step"] for line in read_curve(out)] == [1]


def test_a_checkpoint_of_weights_that_are_not_finite_is_not_saved(
    tmp_path: Path, base: str
) -> None:
    out = tmp_path / "out"
    config = train_config(learning_rate=INFINITE_AFTER, checkpoint_every=0.0, overrides=SECOND_STEP)
    with pytest.raises(TrainingDiverged, match=r"step 2: .*checkpoint-1\."):
        sft(sft_data(tmp_path / "d"), base, out, config)
    kept = latest_checkpoint(out)
    assert kept is not None and kept.name == "checkpoint-1"
    assert [path.name for path in kept.parent.iterdir()] == [kept.name]
    weights = load_file(kept / "model.safetensors")
    assert all(weight.isfinite().all() for weight in weights.values())


def test_a_model_whose_weights_are_not_finite_is_not_saved(tmp_path: Path, base: str) -> None:
    out, config = tmp_path / "out", train_config(learning_rate=INFINITE_AFTER, steps=1, epochs=None)
    with pytest.raises(TrainingDiverged, match="step 1: "):
        sft(sft_data(tmp_path / "d"), base, out, config)
    assert not (out / "model.safetensors").exists()


@pytest.mark.parametrize("lora", [None, Lora(rank=2)], ids=["whole", "merged adapter"])
def test_a_model_whose_weights_overflow_in_its_dtype_is_not_saved(
    tmp_path: Path, lora: Lora | None
) -> None:
    """Training computes in float32, which holds what float16 does not."""
    base, out = tmp_path / "base", tmp_path / "out"
    tokenizer = student()
    tiny(tokenizer).half().save_pretrained(base)
    tokenizer.save_pretrained(base)
    config = train_config(learning_rate=1e6, steps=1, epochs=None, lora=lora)
    with pytest.raises(TrainingDiverged, match=r"step 1: .*float16"):
        sft(sft_data(tmp_path / "d"), str(base), out, config)
    assert not list(out.rglob("*.safetensors"))


def test_training_stops_at_a_test_loss_that_is_not_finite(tmp_path: Path, base: str) -> None:
    out, data = tmp_path / "out", sft_data(tmp_path / "d", rows=2, test=2)
    with pytest.raises(TrainingDiverged, match="step 1: the test loss"):
        sft(data, base, out, train_config(learning_rate=TOO_HIGH))
    assert not (out / "model.safetensors").exists()
