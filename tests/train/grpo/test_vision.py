"""Pictures in tool results reach a policy that sees, while it plays and while it learns."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from policy.vision.gallery import GALLERY, taught

from ludus import episodes, grpo
from ludus.errors import ConfigError, RunError
from ludus.policy.load import load
from ludus.policy.vision import trainer_inputs
from train.grpo.toy_environments import small_config
from train.lessons import curve


def seer(folder: Path) -> Path:
    """It tells the colours that it is shown."""
    policy = taught("qwen2_vl")
    assert policy.vision is not None
    policy.model.save_pretrained(folder)
    policy.tokenizer.save_pretrained(folder)
    policy.vision.save(folder)
    return folder


def test_images_of_episodes_reach_the_trainer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown: list[dict[str, Any]] = []
    whole = trainer_inputs.episode_image_inputs

    def watched(*given: Any) -> dict[str, Any]:
        shown.append(whole(*given))
        return shown[-1]

    monkeypatch.setattr(trainer_inputs, "episode_image_inputs", watched)
    settings = small_config(
        steps=1, groups=2, group_size=2, zero_variance_groups="keep", max_episode_tokens=200
    )
    grpo(GALLERY, str(seer(tmp_path / "base")), tmp_path / "out", settings)
    played = list(episodes(tmp_path / "out" / "episodes.jsonl"))
    assert any(episode.reward == 1.0 for episode in played)
    # The first observation, and what is behind the curtain; not what came after the last word.
    assert [len(each["num_images"]) for each in shown] == [4]
    assert max(shown[0]["num_images"]) == 2
    (line,) = curve(tmp_path / "out")
    assert line["grad_norm"] >= 0 and line["trained"] == 1
    assert load(str(tmp_path / "out")).vision is not None


def test_a_reference_model_is_not_supported_with_images(tmp_path: Path) -> None:
    base = str(seer(tmp_path / "base"))
    with pytest.raises(ConfigError, match=r"beta 0\.1 is not for a model that sees"):
        grpo(GALLERY, base, tmp_path / "out", small_config(beta=0.1))


def test_a_text_model_is_rejected_when_the_environment_shows_images(
    model: Path, tmp_path: Path
) -> None:
    with pytest.raises(RunError, match="picture"):
        grpo(GALLERY, str(model), tmp_path / "out", small_config())
    assert not (tmp_path / "out").exists()
