from __future__ import annotations

import json
from pathlib import Path
from statistics import fmean

from ludus import episodes, grpo
from train.grpo.toy_environments import PICK, small_config
from train.lessons import curve


def test_training_raises_the_reward_and_writes_all_files(model: Path, tmp_path: Path) -> None:
    settings = small_config(steps=30, groups=4, group_size=8, learning_rate=1e-3, seed=1)
    outcome = grpo(PICK, str(model), tmp_path / "out", settings)
    log = curve(tmp_path / "out")
    assert outcome.steps == len(log) == 30
    assert fmean(line["reward"] for line in log[:3]) < 0.3
    assert fmean(line["reward"] for line in log[-3:]) > 0.8
    # All that was played is there, with the step that it was played for.
    played = list(episodes(tmp_path / "out" / "episodes.jsonl"))
    assert [episode.agent["step"] for episode in played] == [
        step for step in range(1, 31) for _ in range(32)
    ]
    last = [episode.reward for episode in played[-32:]]
    assert log[-1]["reward"] == fmean(reward for reward in last if reward is not None)
    record = json.loads((tmp_path / "out" / "training.json").read_text())
    assert record["kind"] == "grpo" and record["environment"]["spec"] == PICK
    assert record["figures"]["last_reward"] > record["figures"]["first_reward"]
    for name in ("model.safetensors", "tokenizer.json", "README.md", "reward.png"):
        assert (tmp_path / "out" / name).is_file()
    card = (tmp_path / "out" / "README.md").read_text()
    assert "Pick a letter (" in card and '"name": "pick"' in card and f"ludus eval {PICK} " in card
