"""The trainer: zero-variance groups, the learning rate schedule, and rejected overrides."""

from __future__ import annotations

from math import nan
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from ludus import Episode, grpo
from ludus.errors import ConfigError
from ludus.train.grpo.trainer import sum_rewards, warmup_linear_schedule, zero_variance_mask
from train.grpo.toy_environments import FLAT, PICK, small_config
from train.short_runs import RecordingProgress, read_curve

GRADED = 1
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
        assert (line["equal"], line["trained"]) == (1.0, 0.0)
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
    assert skipped["equal"] == 0 and skipped["trained"] < 1
    assert skipped["grad_norm"] == pytest.approx(kept["grad_norm"], rel=1e-3)


@pytest.mark.parametrize("size", range(2, 17))
def test_rounding_of_equal_rewards_is_no_variance(size: int) -> None:
    values = torch.arange(0.01, 2.0, 0.01).repeat_interleave(size).unsqueeze(1)
    assert zero_variance_mask(values, size).all()
    values[::size] += 1e-3
    assert not zero_variance_mask(values, size).any()


def test_unscored_rows_are_ignored_in_the_variance() -> None:
    parts = torch.tensor([[0.5, nan], [nan, nan], [0.2, 0.3], [0.4, 0.1], [nan, nan], [1.0, nan]])
    sums = sum_rewards(parts, torch.tensor([1.0, 1.0]))
    assert sums.isnan().flatten().tolist() == [False, True, False, False, True, False]
    assert zero_variance_mask(sums, 2).tolist() == [True, True, True, True, True, True]
    assert zero_variance_mask(sums, 3).tolist() == [True, True, True, False, False, False]
    # Part by part: equal sums can have different parts.
    assert zero_variance_mask(parts, 2).tolist() == [True, True, False, False, True, True]


def test_with_a_kl_penalty_zero_variance_groups_are_kept(model: Path, tmp_path: Path) -> None:
    for mode in ("skip", "keep"):
        config = small_config(
            groups=4, zero_variance_groups=mode, seed=3, beta=0.5, learning_rate=1e-2
        )
        seen = RecordingProgress()
        grpo(FLAT, str(model), tmp_path / mode, config, progress=seen)
        notes = [text for text in seen.messages if "kept" in text]
        assert bool(notes) is (mode == "skip")
    logs = [read_curve(tmp_path / mode) for mode in ("skip", "keep")]
    assert 0 < logs[0][0]["equal"] < 1
    for name in ("loss", "grad_norm", "kl"):
        assert [line.get(name) for line in logs[0]] == [line.get(name) for line in logs[1]]


def test_the_learning_rate_warms_up_and_decays_linearly() -> None:
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=8.0)
    schedule, rates = warmup_linear_schedule(optimizer, 3, 7), []
    for _ in range(8):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    assert rates == pytest.approx([2, 4, 6, 8, 6, 4, 2, 0])


def test_every_step_has_a_positive_learning_rate(model: Path, tmp_path: Path) -> None:
    config = small_config(steps=10, groups=1, max_episode_tokens=8)
    grpo(PICK, str(model), tmp_path / "out", config, progress=RecordingProgress(stop_after=2))
    rates = [line["learning_rate"] for line in read_curve(tmp_path / "out")]
    assert rates == pytest.approx([1.5e-3, 3e-3])


@pytest.mark.parametrize(
    ("name", "value", "match"),
    [
        ("loss_type", "foo", "foo"),
        ("scale_rewards", "foo", "foo"),
        ("num_iterations", "0", "num_iterations"),
    ],
)
def test_overrides_that_trl_rejects_late_raise_a_config_error(
    model: Path, tmp_path: Path, name: str, value: str, match: str
) -> None:
    with pytest.raises(ConfigError, match=match):
        grpo(PICK, str(model), tmp_path / "out", small_config(overrides={name: value}))
    assert not (tmp_path / "out").exists()
