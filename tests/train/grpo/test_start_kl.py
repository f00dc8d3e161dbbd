"""How far training moves a policy, and how far decoder and trainer are apart."""

from __future__ import annotations

from pathlib import Path

import pytest

from ludus import grpo
from ludus.data.training_log import read_log
from train.grpo.toy_environments import PICK, small_config


def metric(out: Path, name: str) -> dict[int, float]:
    return {line["step"]: line[name] for line in read_log(out) if name in line}


def test_the_divergence_from_the_start_grows_with_the_learning_rate(
    model: Path, tmp_path: Path
) -> None:
    divergence = {}
    for rate in (1e-9, 3e-2):
        out = tmp_path / f"{rate}"
        settings = {
            "steps": 2,
            "eval_every": 1,
            "eval_episodes": 8,
            "max_rollbacks": 0,
            "target_kl": 0,
        }
        grpo(PICK, str(model), out, small_config(**settings, learning_rate=rate))
        divergence[rate] = metric(out, "eval_kl")
        assert set(divergence[rate]) <= {1, 2}, "the start has none"
    assert divergence[1e-9][2] == pytest.approx(0.0, abs=1e-3)
    assert max(divergence[3e-2].values()) > 0.5


def test_it_is_known_in_a_resumed_run(model: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    settings = {"eval_every": 1, "eval_episodes": 4, "learning_rate": 1e-9}
    grpo(PICK, str(model), out, small_config(**settings, steps=1))
    grpo(PICK, str(model), out, small_config(**settings, steps=2))
    assert metric(out, "eval_kl")[2] == pytest.approx(0.0, abs=1e-3)


def test_decoder_and_trainer_agree_about_sampled_tokens(model: Path, tmp_path: Path) -> None:
    grpo(
        PICK,
        str(model),
        tmp_path / "out",
        small_config(steps=2, learning_rate=1e-3, zero_variance_groups="keep"),
    )
    mismatch = metric(tmp_path / "out", "mismatch")
    assert set(mismatch) == {1, 2}
    assert all(0 <= value < 1e-3 for value in mismatch.values()), mismatch
