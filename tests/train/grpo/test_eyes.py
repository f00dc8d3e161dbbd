"""Pictures in tool results reach a policy that sees, while it plays and while it learns."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from policy.vision.image_env import GALLERY, taught

from ludus import episodes
from ludus.errors import ConfigError, RunError
from ludus.policy.load import load
from ludus.policy.vision import trainer_inputs
from ludus.train import grpo
from train.grpo.trials import tried
from train.lessons import curve


def seer(folder: Path) -> Path:
    """It tells the colours that it is shown."""
    policy = taught("qwen2_vl")
    assert policy.vision is not None
    policy.model.save_pretrained(folder)
    policy.tokenizer.save_pretrained(folder)
    policy.vision.save(folder)
    return folder


def test_a_model_that_sees_learns_from_what_it_saw(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown: list[dict[str, Any]] = []
    whole = trainer_inputs.episode_image_inputs

    def watched(*given: Any) -> dict[str, Any]:
        shown.append(whole(*given))
        return shown[-1]

    monkeypatch.setattr(trainer_inputs, "episode_image_inputs", watched)
    settings = tried(steps=1, groups=2, group_size=2, equal="keep", max_episode_tokens=200)
    grpo(GALLERY, str(seer(tmp_path / "base")), tmp_path / "out", settings)
    played = list(episodes(tmp_path / "out" / "episodes.jsonl"))
    assert any(episode.reward == 1.0 for episode in played)
    # The first observation, and what is behind the curtain; not what came after the last word.
    assert [len(each["num_images"]) for each in shown] == [4]
    assert max(shown[0]["num_images"]) == 2
    (line,) = curve(tmp_path / "out")
    assert line["grad_norm"] >= 0 and line["trained"] == 1
    assert load(str(tmp_path / "out")).vision is not None


def test_what_would_be_computed_without_pictures_is_refused(tmp_path: Path) -> None:
    base = str(seer(tmp_path / "base"))
    with pytest.raises(ConfigError, match=r"beta 0\.1 is not for a model that sees"):
        grpo(GALLERY, base, tmp_path / "out", tried(beta=0.1))


def test_a_model_without_eyes_is_refused_before_it_learns(model: Path, tmp_path: Path) -> None:
    with pytest.raises(RunError, match="picture"):
        grpo(GALLERY, str(model), tmp_path / "out", tried())
    assert not (tmp_path / "out").exists()
