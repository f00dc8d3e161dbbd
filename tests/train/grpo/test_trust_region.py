"""The learning rate of GRPO follows how far a step moves the policy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from ludus import grpo
from ludus.data.training_log import read_log
from ludus.train.grpo.learning_rate import (
    MAX_CHANGE,
    MAX_FACTOR,
    MIN_CHANGE,
    UNDO_ABOVE,
    TrustRegion,
    WeightSnapshot,
)
from ludus.train.output.checkpoints import latest_checkpoint, read_state
from train.grpo.toy_environments import PICK, small_config


def test_the_rate_is_kept_where_steps_have_the_target_divergence() -> None:
    region = TrustRegion(target_kl=0.04)
    region.update(0.04, rate_fraction=1.0)
    assert region.factor == pytest.approx(1.0)
    region.update(0.01, rate_fraction=0.5)
    assert region.factor == pytest.approx(1.0), "half the rate has a quarter of the divergence"


def test_the_rate_falls_faster_than_it_rises() -> None:
    region = TrustRegion(target_kl=0.04)
    region.update(0.05, rate_fraction=1.0)
    assert region.factor == pytest.approx((0.04 / 0.05) ** 0.5)
    region.update(1000.0, rate_fraction=1.0)
    assert region.factor == pytest.approx((0.04 / 0.05) ** 0.5 * MIN_CHANGE)
    before = region.factor
    region.update(0.0, rate_fraction=1.0)
    assert region.factor == pytest.approx(before * MAX_CHANGE)
    for _ in range(100):
        region.update(0.0, rate_fraction=1.0)
    assert region.factor == MAX_FACTOR


def run(model: Path, out: Path, **changes: Any) -> list[dict[str, Any]]:
    settings = {"steps": 8, "groups": 4, "overrides": {"warmup_steps": 0}, **changes}
    grpo(PICK, str(model), out, small_config(**settings))
    return [line for line in read_log(out) if "reward" in line]


def test_a_step_that_moves_the_policy_too_far_is_taken_back_in_part(
    model: Path, tmp_path: Path
) -> None:
    wild = run(model, tmp_path / "wild", learning_rate=3e-2, target_kl=0, steps=2)
    log = run(model, tmp_path / "out", learning_rate=3e-2, target_kl=0.05)
    assert log[0]["halvings"] >= 2
    assert all(line["step_kl"] <= UNDO_ABOVE * 0.05 for line in log if "step_kl" in line)
    assert log[-1]["learning_rate"] < 0.1 * log[0]["learning_rate"]
    assert log[1]["format"] > 0.9 > wild[1]["format"]


def test_halving_an_update_is_a_step_at_half_the_rate() -> None:
    def update(rate: float) -> tuple[torch.Tensor, WeightSnapshot]:
        model = torch.nn.Linear(4, 4)
        torch.nn.init.ones_(model.weight)
        optimizer = torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=0.1)
        before = WeightSnapshot(model)
        model(torch.arange(4.0)).square().sum().backward()
        optimizer.step()
        return model.weight, before

    whole, before = update(0.2)
    before.halve_update()
    half, _ = update(0.1)
    torch.testing.assert_close(whole, half)


def test_after_a_rollback_the_rate_stays_halved() -> None:
    """At half the scheduled rate the target is a quarter, so the factor does not make up for it."""
    region = TrustRegion(target_kl=0.04)
    for _ in range(20):
        region.update(0.04 * 0.5**2 * region.factor**2, rate_fraction=0.5)
    assert region.factor == pytest.approx(1.0)


def test_a_rate_that_hardly_moves_the_policy_is_raised(model: Path, tmp_path: Path) -> None:
    log = run(model, tmp_path / "out", learning_rate=1e-6)
    assert log[0]["step_kl"] < 0.01
    assert log[3]["learning_rate"] == pytest.approx(1e-6 * MAX_CHANGE**3)


def test_a_resumed_run_keeps_the_rate_that_was_found(model: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    run(model, out, learning_rate=3e-2, steps=4)
    checkpoint = latest_checkpoint(out)
    state = read_state(checkpoint) if checkpoint is not None else None
    assert state is not None and state.trust_factor <= 0.5
    log = run(model, out, learning_rate=3e-2, steps=5)
    assert log[-1]["learning_rate"] == pytest.approx(3e-2 * state.trust_factor)


def test_without_a_target_the_rate_is_scheduled(model: Path, tmp_path: Path) -> None:
    changes = {"overrides": {"lr_scheduler_type": "linear"}}
    log = run(model, tmp_path / "out", learning_rate=1e-6, target_kl=0, steps=2, **changes)
    assert [line["learning_rate"] for line in log] == pytest.approx([1e-6, 5e-7])
    assert "step_kl" not in log[0]
