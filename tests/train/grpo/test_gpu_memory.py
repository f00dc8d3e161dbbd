"""Out-of-memory errors save a checkpoint and name the largest batch size that fits."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
import torch

from ludus import grpo
from ludus.errors import OutOfMemory
from ludus.train.grpo import pipeline
from ludus.train.grpo.gpu_memory import divisors_below, find_largest_batch
from train.grpo.toy_environments import PICK, read_episodes, small_config
from train.short_runs import read_curve


@contextmanager
def memory_for(rows: int, *, after: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """After `after` steps, training on more than `rows` rows at once runs out of memory."""
    original: Any = vars(pipeline)["build_trainer"]

    def build_trainer(*args: Any, **kwargs: Any) -> Any:
        trainer = original(*args, **kwargs)

        def run_out_of_memory(*_: Any) -> None:
            training = trainer._batch is not None and torch.is_grad_enabled()
            late = trainer.state.global_step >= after
            if training and late and len(trainer._batch["prompt_ids"]) > rows:
                raise torch.OutOfMemoryError("CUDA out of memory.")

        trainer.model.register_forward_pre_hook(run_out_of_memory)
        return trainer

    with monkeypatch.context() as patch:
        patch.setattr(pipeline, "build_trainer", build_trainer)
        yield


def test_out_of_memory_names_the_largest_batch_size_and_the_run_resumes_with_it(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, config = tmp_path / "out", {"steps": 3, "zero_variance_groups": "keep"}
    with memory_for(3, after=1, monkeypatch=monkeypatch):
        with pytest.raises(OutOfMemory, match="`batch_size` 8") as caught:
            grpo(PICK, str(model), out, small_config(**config))
        assert caught.value.batch_size == 2
        result = grpo(PICK, str(model), out, small_config(**config, batch_size=2))
    assert (result.resumed_from, result.steps) == (1, 3)
    episodes = read_episodes(out)
    assert [each.agent["step"] for each in episodes] == [
        step for step in (1, 2, 3) for _ in range(8)
    ]
    for line in read_curve(out):
        mine = [each for each in episodes if each.agent["step"] == line["step"]]
        assert line["turns"] == pytest.approx(fmean(each.turns for each in mine))
        assert line["reward"] == pytest.approx(fmean(each.reward or 0.0 for each in mine))
    one, two, three = (line["tokens"] for line in read_curve(out))
    assert max(two - one, three - two) < 1.5 * one, "the step that failed is not counted"


def test_out_of_memory_with_a_single_row_advises_other_options(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (
        memory_for(0, after=0, monkeypatch=monkeypatch),
        pytest.raises(OutOfMemory, match="`gradient_checkpointing`") as caught,
    ):
        grpo(PICK, str(model), tmp_path / "out", small_config(zero_variance_groups="keep"))
    assert caught.value.batch_size is None
    assert not (tmp_path / "out").exists(), "no step was made"


def test_batch_sizes_are_tried_from_the_largest_down() -> None:
    sizes = []

    def try_batch(size: int) -> None:
        sizes.append(size)
        if size > 5:
            raise torch.OutOfMemoryError

    assert divisors_below(24, 12) == [1, 2, 3, 4, 6, 8]
    assert find_largest_batch(try_batch, divisors_below(24, 12)) == 4
    assert sizes == [8, 6, 4]
