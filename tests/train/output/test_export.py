"""Rebuilding a model from weights that were gathered from several processes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from policy.models import saved

from ludus.errors import RunError
from ludus.policy.load import load_model
from ludus.policy.model_ref import resolve_model
from ludus.train import Lora
from ludus.train.output.finalize import rebuild_model
from ludus.train.trl_config import build_peft_config
from train.short_runs import train_config


def modified_model(base: str, lora: Lora | None) -> Any:
    """The base model with other weights, with an adapter or without."""
    import torch
    from peft import get_peft_model

    model = load_model(base, device="cpu", dtype="float32")
    model = get_peft_model(model, build_peft_config(lora)) if lora else model
    with torch.no_grad():
        for weights in model.parameters():
            weights.add_(0.05)
    return model


@pytest.mark.parametrize("lora", [None, Lora(rank=2)], ids=["whole", "adapter"])
def test_gathered_weights_give_the_trained_model(tmp_path: Path, lora: Lora | None) -> None:
    import torch

    base = str(saved(tmp_path / "base"))
    model, ids = modified_model(base, lora), torch.arange(8)[None]
    state = model.state_dict()
    # Tied weights may be gathered under one of their names.
    state.pop(next(name for name in state if name.endswith("lm_head.weight")))
    rebuilt = rebuild_model(state, train_config(lora=lora), resolve_model(base))
    with torch.no_grad():
        assert torch.equal(rebuilt(ids).logits, model(ids).logits)
        if lora:
            assert torch.allclose(
                rebuilt.merge_and_unload()(ids).logits, model(ids).logits, atol=1e-4
            )


def test_missing_and_unexpected_weights_raise(tmp_path: Path) -> None:
    base = str(saved(tmp_path / "base"))
    state = modified_model(base, None).state_dict()
    name = "model.norm.weight"
    with pytest.raises(RunError, match=name):
        rebuild_model(
            {key: state[key] for key in state if key != name}, train_config(), resolve_model(base)
        )
    with pytest.raises(RunError, match=r"module\.x"):
        rebuild_model({**state, "module.x": state[name]}, train_config(), resolve_model(base))


@pytest.mark.slow
def test_weights_sharded_over_two_processes_are_restored(tmp_path: Path) -> None:
    program = Path(__file__).parents[1] / "sharded_export.py"
    launcher = (sys.executable, "-m", "torch.distributed.run", "--standalone")
    done = subprocess.run(
        [*launcher, "--nproc_per_node", "2", str(program), str(saved(tmp_path / "base"))],
        env={**os.environ, "PYTHONPATH": str(program.parents[1]), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
