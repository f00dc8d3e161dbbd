"""Micro-batches: how rows are divided, and that a step does not depend on it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import fmean
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from ludus import grpo
from ludus.errors import OutOfMemory
from ludus.train.grpo import pipeline
from ludus.train.grpo import trainer as trainer_module
from ludus.train.grpo.micro_batches import StepSnapshot, split_rows
from train.grpo.toy_environments import PICK, read_episodes, small_config
from train.short_runs import read_curve


@contextmanager
def memory_for(rows: int, *, after: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """After `after` steps, training on more than `rows` rows at once runs out of memory."""
    original: Any = vars(pipeline)["build_trainer"]

    def build_trainer(*args: Any, **kwargs: Any) -> Any:
        trainer = original(*args, **kwargs)

        def run_out_of_memory(*_: Any) -> None:
            late = trainer.state.global_step >= after
            if torch.is_grad_enabled() and late and len(trainer._micro_batch["prompt_ids"]) > rows:
                raise torch.OutOfMemoryError("CUDA out of memory.")

        trainer.model.register_forward_pre_hook(run_out_of_memory)
        return trainer

    with monkeypatch.context() as patch:
        patch.setattr(pipeline, "build_trainer", build_trainer)
        yield


def weights(out: Path) -> dict[str, torch.Tensor]:
    return load_file(out / "model.safetensors")


def test_after_an_out_of_memory_error_the_step_is_repeated_in_smaller_parts(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = small_config(steps=3, zero_variance_groups="keep")
    grpo(PICK, str(model), tmp_path / "whole", config)
    with memory_for(3, after=1, monkeypatch=monkeypatch):
        result = grpo(PICK, str(model), tmp_path / "parts", config)
    assert result.steps == 3
    episodes = read_episodes(tmp_path / "parts")
    assert [each.agent["step"] for each in episodes] == [
        step for step in (1, 2, 3) for _ in range(8)
    ]
    curve = read_curve(tmp_path / "parts")
    assert curve[0]["micro_batches"] == 1
    assert all(line["micro_batches"] >= 3 for line in curve[1:])
    for line in curve:
        mine = [each for each in episodes if each.agent["step"] == line["step"]]
        assert line["reward"] == pytest.approx(fmean(each.reward or 0.0 for each in mine))
    expected = weights(tmp_path / "whole")
    for name, value in weights(tmp_path / "parts").items():
        torch.testing.assert_close(value, expected[name], atol=1e-5, rtol=1e-4)


def test_out_of_memory_before_the_first_part_is_handled_the_same(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The divergence of the step is measured there, on rows that are computed in float32."""
    config = small_config(steps=1, zero_variance_groups="keep")
    take: Any = vars(trainer_module)["Probe"].take

    def take_from_few(unwrapped: Any, batch: Any) -> Any:
        if len(batch["prompt_ids"]) > 3:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return take(unwrapped, batch)

    monkeypatch.setattr(trainer_module, "Probe", SimpleNamespace(take=take_from_few))
    assert grpo(PICK, str(model), tmp_path / "out", config).steps == 1
    assert read_curve(tmp_path / "out")[0]["micro_batches"] >= 3


def test_a_step_that_fails_again_starts_from_the_same_sums() -> None:
    trainer = SimpleNamespace(
        _tr_loss=torch.tensor(1.0),
        _metrics={"train": {"mismatch": [1.0]}},
        state=SimpleNamespace(num_input_tokens_seen=5),
    )
    snapshot = StepSnapshot.take(trainer)
    for _ in range(2):
        trainer._metrics["train"]["mismatch"].append(9.0)
        trainer._tr_loss += 1
        snapshot.restore(trainer)
        assert trainer._metrics == {"train": {"mismatch": [1.0]}} and trainer._tr_loss == 1.0


def test_out_of_memory_with_a_single_row_advises_other_options(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (
        memory_for(0, after=0, monkeypatch=monkeypatch),
        pytest.raises(OutOfMemory, match="`gradient_checkpointing`"),
    ):
        grpo(PICK, str(model), tmp_path / "out", small_config(zero_variance_groups="keep"))
    assert not (tmp_path / "out").exists(), "no step was made"


@pytest.mark.parametrize("loss_type", ["dapo", "grpo", "bnpo", "dr_grpo"])
def test_a_step_does_not_depend_on_how_its_rows_are_divided(
    loss_type: str, model: Path, tmp_path: Path
) -> None:
    outs = []
    for size in (8, 3):
        out = tmp_path / str(size)
        config = small_config(
            steps=1, batch_size=size, zero_variance_groups="keep",
            overrides={"loss_type": loss_type, "optim": "sgd", "max_grad_norm": 0.0},
            learning_rate=0.1,
        )  # fmt: skip
        grpo(PICK, str(model), out, config)
        outs.append(weights(out))
    before = weights(model)
    assert any(not torch.equal(before[name], outs[0][name]) for name in before)
    for name, value in outs[0].items():
        torch.testing.assert_close(value, outs[1][name], atol=1e-6, rtol=1e-4)


def test_rows_are_divided_by_padded_tokens_and_by_number() -> None:
    lengths = [10, 10, 10, 30, 10, 100]
    assert split_rows(lengths, max_tokens=None, max_rows=None) == [[0, 1, 2, 3, 4, 5]]
    assert split_rows(lengths, max_tokens=60, max_rows=None) == [[0, 1, 2], [3, 4], [5]]
    assert split_rows(lengths, max_tokens=None, max_rows=4) == [[0, 1, 2, 3], [4, 5]]
    assert split_rows(lengths, max_tokens=30, max_rows=2) == [[0, 1], [2], [3], [4], [5]]
