"""Images in tool results reach the model in rollouts and in training."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from policy.vision.image_env import GALLERY, taught

from ludus import grpo
from ludus.errors import RunError
from ludus.policy.load import load
from ludus.train.grpo import trainer
from train.grpo.toy_environments import read_episodes, small_config
from train.short_runs import read_curve


def save_vision_model(folder: Path) -> Path:
    """A model that names the colours of images."""
    policy = taught("qwen2_vl")
    assert policy.vision is not None
    policy.model.save_pretrained(folder)
    policy.tokenizer.save_pretrained(folder)
    policy.vision.image_processor.save_pretrained(folder)
    return folder


def test_images_of_episodes_reach_the_trainer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    image_inputs: list[dict[str, Any]] = []
    original: Any = vars(trainer)["episode_image_inputs"]

    def record(*args: Any) -> dict[str, Any]:
        image_inputs.append(original(*args))
        return image_inputs[-1]

    monkeypatch.setattr(trainer, "episode_image_inputs", record)
    config = small_config(
        steps=1, groups=2, group_size=2, zero_variance_groups="keep", max_episode_tokens=200
    )
    grpo(GALLERY, str(save_vision_model(tmp_path / "base")), tmp_path / "out", config)
    episodes = read_episodes(tmp_path / "out")
    assert any(episode.reward == 1.0 for episode in episodes)
    # The first two observations, but not the one after the last reply.
    assert sum(len(each["image_grid_thw"]) for each in image_inputs) >= 4
    (line,) = read_curve(tmp_path / "out")
    assert line["grad_norm"] >= 0 and line["trained"] > 0
    assert load(str(tmp_path / "out")).vision is not None


def test_a_reference_model_sees_the_images_too(tmp_path: Path) -> None:
    base = str(save_vision_model(tmp_path / "base"))
    config = small_config(
        steps=1, groups=2, group_size=2, beta=0.1, max_episode_tokens=200, learning_rate=1e-9
    )
    grpo(GALLERY, base, tmp_path / "out", config)
    (line,) = read_curve(tmp_path / "out")
    assert line["kl"] == pytest.approx(0.0, abs=1e-4)


def test_a_text_model_is_rejected_when_the_environment_shows_images(
    model: Path, tmp_path: Path
) -> None:
    with pytest.raises(RunError, match=r"picture|image"):
        grpo(GALLERY, str(model), tmp_path / "out", small_config())
    assert not (tmp_path / "out").exists()
