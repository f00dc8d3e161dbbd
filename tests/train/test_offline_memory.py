"""SFT and DPO where the GPU's memory does not hold as many rows at once as they are told."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from policy.models import saved
from safetensors.torch import load_file

from ludus import dpo, sft
from ludus.errors import OutOfMemory
from ludus.train import offline
from train.sample_rows import dpo_row, sft_data, write_jsonl
from train.short_runs import RecordingProgress, read_curve, train_config


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(saved(tmp_path_factory.mktemp("base")))


@contextmanager
def memory_for(rows: int, monkeypatch: pytest.MonkeyPatch, *, after: int = 0) -> Iterator[None]:
    """After `after` steps, training on more than `rows` sequences at once runs out of memory."""
    original: Any = vars(offline)["build_trainer"]

    def build_trainer(*args: Any, **kwargs: Any) -> Any:
        trainer = original(*args, **kwargs)

        def run_out_of_memory(module: Any, args: Any, inputs: dict[str, Any]) -> None:
            late = trainer.state.global_step >= after
            if torch.is_grad_enabled() and late and len(inputs["input_ids"]) > rows:
                raise torch.OutOfMemoryError("CUDA out of memory.")

        trainer.model.register_forward_pre_hook(run_out_of_memory, with_kwargs=True)
        return trainer

    with monkeypatch.context() as patch:
        patch.setattr(offline, "build_trainer", build_trainer)
        yield


def check_same_model(one: Path, other: Path) -> None:
    expected = load_file(one / "model.safetensors")
    for name, value in load_file(other / "model.safetensors").items():
        torch.testing.assert_close(value, expected[name], atol=1e-5, rtol=1e-4)


def test_a_step_is_divided_until_it_fits_and_its_result_stays_the_same(
    tmp_path: Path, base: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, config = sft_data(tmp_path / "d", rows=12, test=3), train_config(epochs=2, batch_size=6)
    sft(data, base, tmp_path / "whole", config)
    progress = RecordingProgress()
    with memory_for(2, monkeypatch):
        result = sft(data, base, tmp_path / "parts", config, progress=progress)
    assert result.steps == 4 and len([text for text in progress.messages if "memory" in text]) == 2
    record = json.loads((tmp_path / "parts/training.json").read_text())
    assert record["config"]["per_device_train_batch_size"] == 1
    assert record["config"]["gradient_accumulation_steps"] == 6
    assert record["settings"]["batch_size"] == 6
    check_same_model(tmp_path / "whole", tmp_path / "parts")
    # The same command finds the same run.
    assert sft(data, base, tmp_path / "parts", config).steps == 4


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_long_run_goes_on_from_its_checkpoint(
    tmp_path: Path, base: str, monkeypatch: pytest.MonkeyPatch, overwrite: bool
) -> None:
    data = sft_data(tmp_path / "d", rows=12)
    config = train_config(epochs=2, batch_size=4, checkpoint_every=1e-9)
    sft(data, base, tmp_path / "whole", config)
    if overwrite:
        sft(data, base, tmp_path / "parts", train_config(steps=1, epochs=None))
    progress = RecordingProgress()
    with memory_for(2, monkeypatch, after=3):
        sft(data, base, tmp_path / "parts", config, progress=progress, overwrite=overwrite)
    assert progress.started == (6, 3)
    assert [line["step"] for line in read_curve(tmp_path / "parts")] == [*range(1, 7)]
    check_same_model(tmp_path / "whole", tmp_path / "parts")


def test_pairs_are_divided_too(tmp_path: Path, base: str, monkeypatch: pytest.MonkeyPatch) -> None:
    write_jsonl(tmp_path / "d/train.jsonl", map(dpo_row, range(8)))
    config = train_config(batch_size=4, learning_rate=1e-3)
    dpo(tmp_path / "d", base, tmp_path / "whole", config)
    with memory_for(4, monkeypatch):  # Two pairs.
        dpo(tmp_path / "d", base, tmp_path / "parts", config)
    check_same_model(tmp_path / "whole", tmp_path / "parts")


def test_pairs_are_divided_where_their_reference_does_not_fit(
    tmp_path: Path, base: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_jsonl(tmp_path / "d/train.jsonl", map(dpo_row, range(8)))
    config = train_config(batch_size=4, learning_rate=1e-3)
    dpo(tmp_path / "d", base, tmp_path / "whole", config)
    load_model = vars(offline)["load_trainable_model"]

    def run_out_of_memory(module: Any, args: Any, inputs: dict[str, Any]) -> None:
        if not torch.is_grad_enabled() and len(inputs["input_ids"]) > 4:  # Two pairs.
            raise torch.OutOfMemoryError("CUDA out of memory.")

    def load_hooked_model(*args: Any) -> Any:
        model = load_model(*args)
        model.register_forward_pre_hook(run_out_of_memory, with_kwargs=True)
        return model

    progress = RecordingProgress()
    with monkeypatch.context() as patch:
        patch.setattr(offline, "load_trainable_model", load_hooked_model)
        dpo(tmp_path / "d", base, tmp_path / "parts", config, progress=progress)
    assert any("with 4 rows at once" in text for text in progress.messages)
    check_same_model(tmp_path / "whole", tmp_path / "parts")


def test_a_row_that_does_not_fit_alone_is_an_error(
    tmp_path: Path, base: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = sft_data(tmp_path / "d", rows=4)
    with memory_for(0, monkeypatch), pytest.raises(OutOfMemory, match="`gradient_checkpointing`"):
        sft(data, base, tmp_path / "out", train_config())
    assert not (tmp_path / "out").exists(), "no step was made"
