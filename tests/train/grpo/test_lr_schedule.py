"""The learning rate schedule."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from ludus import grpo
from ludus.train.grpo.learning_rate import warmup_schedule
from train.grpo.toy_environments import PICK, small_config
from train.short_runs import RecordingProgress, read_curve


@pytest.mark.parametrize(
    ("decay_to", "expected"),
    [(None, [2, 4, 6, 8, 8, 8, 8, 8]), (7, [2, 4, 6, 8, 6, 4, 2, 0])],
)
def test_the_learning_rate_warms_up_and_is_constant_or_decays_linearly(
    decay_to: int | None, expected: list[int]
) -> None:
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=8.0)
    schedule, rates = warmup_schedule(optimizer, 3, decay_to), []
    for _ in range(8):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    assert rates == pytest.approx(expected)


def test_every_step_has_a_positive_learning_rate(model: Path, tmp_path: Path) -> None:
    config = small_config(steps=10, groups=1, max_episode_tokens=8)
    grpo(PICK, str(model), tmp_path / "out", config, progress=RecordingProgress(stop_after=2))
    rates = [line["learning_rate"] for line in read_curve(tmp_path / "out")]
    assert rates == pytest.approx([1.5e-3, 3e-3])
