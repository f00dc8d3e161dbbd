"""A run that gets worse goes back to its best model, stops in the end, and keeps the best."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from ludus import grpo
from ludus.data.training_log import read_log
from ludus.train.grpo.health import HealthMonitor
from ludus.train.output.checkpoints import BestModel, load_best, read_best, save_best
from ludus.train.output.record import read_record
from train.grpo.toy_environments import PICK, small_config

DESTRUCTIVE = {
    "learning_rate": 3.0, "target_kl": 0, "steps": 8, "eval_every": 2, "eval_episodes": 24,
    "zero_variance_groups": "keep",
}  # fmt: skip


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "model.safetensors")


def test_a_collapse_is_rolled_back_then_stopped_and_the_best_model_is_kept(
    model: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    result = grpo(PICK, str(model), out, small_config(**DESTRUCTIVE, max_rollbacks=1))
    log = list(read_log(out))
    held_out = {line["step"]: line["eval_reward"] for line in log if "eval_reward" in line}
    assert held_out[0] > 0.3 and held_out[2] < 0.1, "the rate destroys the model at once"
    rollbacks = [line for line in log if "rollback_to" in line]
    assert [(line["step"], line["rollback_to"]) for line in rollbacks] == [(2, 0)]
    rates = {line["step"]: line["learning_rate"] for line in log if "learning_rate" in line}
    assert rates[3] < 0.6 * rates[2]
    assert result.stopped is None and result.steps < 8, "after the last rollback it is stopped"
    record = read_record(out)
    assert record is not None and record.metrics is not None
    assert record.metrics.kept_step == 0
    assert record.comparison is not None and record.comparison.saved == record.comparison.start
    card = (out / "README.md").read_text()
    assert "| Kept step | 0 |" in card and "the same as the start" in card
    before, after = weights(model), weights(out)
    for name, weight in before.items():
        torch.testing.assert_close(after[name].float(), weight.float())


def test_after_a_rollback_the_weights_are_synced_with_the_engine(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """vLLM has those of the same step from playing held-out tasks."""
    seen = []
    roll_back = HealthMonitor.roll_back

    def record(monitor: HealthMonitor, trainer: Any) -> Any:
        trainer._last_loaded_step = trainer.state.global_step
        best = roll_back(monitor, trainer)
        seen.append(trainer._last_loaded_step)
        return best

    monkeypatch.setattr(HealthMonitor, "roll_back", record)
    grpo(PICK, str(model), tmp_path / "out", small_config(**DESTRUCTIVE, max_rollbacks=1))
    assert seen == [-1]


def test_keep_last_saves_the_last_model(model: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    grpo(PICK, str(model), out, small_config(**{**DESTRUCTIVE, "steps": 2}, keep="last"))
    record = read_record(out)
    assert record is not None and record.metrics is not None and record.metrics.kept_step is None
    before, after = weights(model), weights(out)
    assert any(not torch.allclose(after[name].float(), before[name].float()) for name in before)


def test_the_best_model_is_restored_weight_by_weight(tmp_path: Path) -> None:
    layers = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.Linear(3, 1))
    layers[0].requires_grad_(False)
    assert read_best(tmp_path) is None
    save_best(tmp_path, layers, BestModel(5, 0.25))
    expected = layers[1].weight.clone()
    with torch.no_grad():
        layers[0].weight.fill_(7.0)
        layers[1].weight.fill_(7.0)
    load_best(tmp_path, layers)
    assert read_best(tmp_path) == BestModel(5, 0.25)
    assert torch.equal(layers[1].weight, expected)
    assert (layers[0].weight == 7.0).all(), "frozen weights are not part of it"
