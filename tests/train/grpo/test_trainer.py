"""The trainer: zero-variance groups and rejected overrides."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from ludus import Episode, grpo
from ludus.errors import ConfigError
from train.grpo.toy_environments import FLAT, PICK, small_config
from train.short_runs import RecordingProgress, read_curve

GRADED = 9
"""With this seed no group has zero variance, and some row has the mean reward of its group."""


def third(episode: Episode) -> float:
    """Adds up to 0.3 with the environment's reward: the mean of eight of these is rounded."""
    return 0.3 - (episode.reward or 0.0)


def weights(folder: Path) -> dict[str, Any]:
    return load_file(folder / "model.safetensors")


@pytest.mark.parametrize("mode", ["skip", "keep"])
def test_equal_rewards_leave_the_weights_unchanged(model: Path, tmp_path: Path, mode: str) -> None:
    config = small_config(
        group_size=8, zero_variance_groups=mode, reward_funcs=(f"{__name__}:third",)
    )
    grpo(PICK, str(model), tmp_path / "out", config)
    for line in read_curve(tmp_path / "out"):
        assert (line["zero_variance"], line["trained"]) == (1.0, 0.0)
        assert line["reward"] == pytest.approx(0.3)
    before, after = weights(model), weights(tmp_path / "out")
    assert all(torch.equal(before[name], after[name]) for name in before)


def graded(episode: Episode) -> float:
    """With the environment's reward: 0 for a, 0.5 for b, and 1 for all other letters."""
    calls = [call for message in episode.messages for call in message.tool_calls or ()]
    arguments = " ".join(call.function.arguments for call in calls)
    own = 0.0 if '"a"' in arguments else 0.5 if '"b"' in arguments else 1.0
    return own - (episode.reward or 0.0)


def test_rows_with_the_mean_reward_count_in_the_loss_normalization(
    model: Path, tmp_path: Path
) -> None:
    logs = []
    for mode in ("skip", "keep"):
        rewards = (f"{__name__}:graded",)
        config = small_config(
            steps=1, groups=3, zero_variance_groups=mode, seed=GRADED, reward_funcs=rewards
        )
        grpo(PICK, str(model), tmp_path / mode, config)
        logs.append(read_curve(tmp_path / mode)[0])
    skipped, kept = logs
    assert skipped["zero_variance"] == 0 and skipped["trained"] < 1
    assert skipped["grad_norm"] == pytest.approx(kept["grad_norm"], rel=1e-3)


def test_with_a_kl_penalty_zero_variance_groups_are_kept(model: Path, tmp_path: Path) -> None:
    for mode in ("skip", "keep"):
        config = small_config(
            groups=4, zero_variance_groups=mode, seed=2, beta=0.5, learning_rate=1e-2
        )
        seen = RecordingProgress()
        grpo(FLAT, str(model), tmp_path / mode, config, progress=seen)
        notes = [text for text in seen.messages if "kept" in text]
        assert bool(notes) is (mode == "skip")
    logs = [read_curve(tmp_path / mode) for mode in ("skip", "keep")]
    assert 0 < logs[0][0]["zero_variance"] < 1
    for name in ("loss", "grad_norm", "kl"):
        values = [[line.get(name) for line in log] for log in logs]
        assert values[0] == pytest.approx(values[1], rel=1e-5)


@pytest.mark.parametrize(
    ("name", "value", "match"),
    [
        ("loss_type", "foo", "foo"),
        ("scale_rewards", "foo", "foo"),
        ("num_iterations", "2", "num_iterations"),
    ],
)
def test_overrides_that_trl_rejects_late_raise_a_config_error(
    model: Path, tmp_path: Path, name: str, value: str, match: str
) -> None:
    with pytest.raises(ConfigError, match=match):
        grpo(PICK, str(model), tmp_path / "out", small_config(overrides={name: value}))
    assert not (tmp_path / "out").exists()


def test_decoder_and_trainer_agree_about_sampled_tokens(model: Path, tmp_path: Path) -> None:
    grpo(
        PICK,
        str(model),
        tmp_path / "out",
        small_config(steps=2, learning_rate=1e-3, zero_variance_groups="keep"),
    )
    lines = read_curve(tmp_path / "out")
    assert len(lines) == 2 and all(0 <= line["mismatch"] < 1e-3 for line in lines)
