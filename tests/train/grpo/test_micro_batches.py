"""Micro-batches: how rows are divided, and that a step does not depend on it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from ludus import grpo
from ludus.errors import OutOfMemory
from ludus.train.grpo.logprobs import LogprobScorer
from ludus.train.grpo.memory_budget import MemoryBudget
from ludus.train.grpo.packed_groups import EpisodeTokens
from ludus.train.grpo.trainer import GRPOTrainer
from train.grpo.toy_environments import PICK, read_episodes, small_config
from train.short_runs import read_curve

LENGTHS = (10, 10, 10, 30, 10, 100)
CPU_TRAINER: Any = SimpleNamespace(args=SimpleNamespace(device=torch.device("cpu")))


@contextmanager
def memory_for(rows: int, *, after: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """After `after` steps, training on more than `rows` episodes at once runs out of memory."""
    original: Any = LogprobScorer.score
    steps = 0

    def score(scorer: Any, episodes: Any, *rest: Any, **more: Any) -> Any:
        if torch.is_grad_enabled() and steps >= after and len(episodes) > rows:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return original(scorer, episodes, *rest, **more)

    check: Any = GRPOTrainer.check_update

    def check_update(trainer: Any) -> None:
        nonlocal steps
        steps += 1
        check(trainer)

    with monkeypatch.context() as patch:
        patch.setattr(LogprobScorer, "score", score)
        patch.setattr(GRPOTrainer, "check_update", check_update)
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


def test_parts_are_as_large_as_the_limits_allow() -> None:
    episodes = [EpisodeTokens((0,) * size, (0,) * (size - 1) + (1,), (-1.0,)) for size in LENGTHS]

    def divide(max_tokens: int | None, max_rows: int | None) -> list[int]:
        """The numbers of episodes of all parts."""
        budget, starts = MemoryBudget(max_rows=max_rows, max_tokens=max_tokens), [0]
        while starts[-1] < len(episodes):
            starts.append(budget.next_stop(episodes, starts[-1], padded_size, CPU_TRAINER))
        return [stop - start for start, stop in pairwise(starts)]

    def padded_size(some: Sequence[EpisodeTokens]) -> int:
        return len(some) * max(len(each.ids) for each in some)

    assert divide(None, None) == [6]
    assert divide(60, None) == [3, 2, 1]
    assert divide(None, 4) == [4, 2]
    assert divide(30, 2) == [2, 1, 1, 1, 1]
    episodes = episodes[:1] * 100
    assert divide(900, None) == [50, 50]
