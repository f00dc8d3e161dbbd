"""The same training by other ways: TRL's rollouts, vLLM, an adapter, several processes."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from ludus import Episode, episodes
from ludus.errors import ConfigError
from ludus.policy.engine.engine_api import Completion, Request
from ludus.policy.engine.sampling import SamplingParams
from ludus.train import Lora, grpo
from ludus.train.grpo.vllm_engine import VllmEngine
from train.grpo.trials import CLIMB, FLAT, PICK, tried
from train.lessons import Seen, curve
from train.test_processes import launch


class Looking(Seen):
    """Also sees whether torch would plan attention for the shapes that there are just then."""

    def __init__(self) -> None:
        super().__init__()
        self.planned: list[bool] = []

    def step(self, line: Mapping[str, Any]) -> None:
        super().step(line)
        self.planned.append(torch.backends.cuda.cudnn_sdp_enabled())


def test_trls_own_loop_plays_the_same_tasks(model: Path, tmp_path: Path) -> None:
    for rollouts in ("fast", "trl"):
        watch = Looking()
        settings = tried(rollouts=rollouts, equal="keep")
        grpo(PICK, str(model), tmp_path / rollouts, settings, progress=watch)
        assert watch.planned and not any(watch.planned)
        assert torch.backends.cuda.cudnn_sdp_enabled()
        assert any(words.startswith("Rollouts by") for words in watch.words)
    played = [list(episodes(tmp_path / way / "episodes.jsonl")) for way in ("fast", "trl")]
    seeds, shown = (
        [[getattr(episode, name) for episode in way] for way in played]
        for name in ("seed", "tools")
    )
    assert seeds[0] == seeds[1] and shown[0] == shown[1]
    openings = [[episode.messages[:2] for episode in way] for way in played]
    assert openings[0] == openings[1]
    prompts = [
        [each.tokens.ids[: each.tokens.mask.index(1)] for each in way if each.tokens]
        for way in played
    ]
    assert prompts[0] == prompts[1]
    keys = [set().union(*curve(tmp_path / way)) for way in ("fast", "trl")]
    assert {"reward", "reward_std", "equal", "format", "length", "entropy"} <= keys[0] & keys[1]


def test_trls_own_loop_takes_a_mix_too(model: Path, tmp_path: Path) -> None:
    settings = tried(rollouts="trl", groups=4, max_episode_tokens=400)
    grpo(f"{PICK},{CLIMB}", str(model), tmp_path / "out", settings)
    played = list(episodes(tmp_path / "out" / "episodes.jsonl"))
    assert {episode.environment for episode in played} == {PICK, CLIMB}
    for episode in played:
        names = [each["function"]["name"] for each in episode.tools]
        assert names == (["climb"] if episode.environment == CLIMB else ["pick"])
    assert "NaN" not in (tmp_path / "out" / "log.jsonl").read_text()


def test_an_adapter_learns_and_is_merged(model: Path, tmp_path: Path) -> None:
    settings = tried(steps=2, lora=Lora(rank=4), equal="keep", seed=2)
    grpo(PICK, str(model), tmp_path / "out", settings)
    assert (tmp_path / "out" / "adapter" / "adapter_model.safetensors").is_file()
    assert (tmp_path / "out" / "model.safetensors").is_file()
    assert any(line["grad_norm"] > 0 for line in curve(tmp_path / "out"))


def test_batches_of_a_step_teach_what_one_batch_teaches(model: Path, tmp_path: Path) -> None:
    for batch in (None, 4):
        settings = tried(steps=2, groups=2, group_size=4, batch_size=batch, equal="keep")
        grpo(PICK, str(model), tmp_path / str(batch), settings)
    one, other = curve(tmp_path / "None"), curve(tmp_path / "4")
    for a, b in zip(one, other, strict=True):
        assert a["reward"] == b["reward"]
        assert a["grad_norm"] == pytest.approx(b["grad_norm"], rel=1e-3)


def test_held_out_tasks_are_tried_now_and_then(model: Path, tmp_path: Path) -> None:
    settings = tried(steps=5, eval_every=2, eval_episodes=6)
    grpo(PICK, str(model), tmp_path / "out", settings)
    held = [line for line in curve(tmp_path / "out") if "eval_reward" in line]
    # Before anything was learned, every so many steps, and at the end.
    assert [line["step"] for line in held] == [0, 2, 4, 5]
    assert all(line["eval_episodes"] == 6 and 0 <= line["eval_reward"] <= 1 for line in held)
    record = json.loads((tmp_path / "out" / "training.json").read_text())
    assert record["figures"]["eval_reward"] == held[-1]["eval_reward"]


def both(monkeypatch: pytest.MonkeyPatch, spec: str, model: Path, out: Path, *more: object) -> Any:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    return launch(
        2, "train", "grpo", spec, "--model", model, "-o", out, "--steps", 2, "--groups", 3,
        "--group-size", 4, "--max-episode-tokens", 64, "--learning-rate", 3e-3, "--device", "cpu",
        "--precision", "fp32", "--report-to", "none", *more,
    )  # fmt: skip


def test_two_processes_play_the_groups_of_one(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = both(monkeypatch, FLAT, model, tmp_path / "two", "--seed", 3)
    assert done.returncode == 0, done.stderr
    settings = tried(steps=2, groups=3, group_size=4, seed=3)
    grpo(FLAT, str(model), tmp_path / "one", settings)
    one, two = (list(episodes(tmp_path / way / "episodes.jsonl")) for way in ("one", "two"))
    facts = [[(e.seed, e.group_id, e.messages) for e in way[:12]] for way in (one, two)]
    assert facts[0] == facts[1]
    first, other = curve(tmp_path / "one")[0], curve(tmp_path / "two")[0]
    assert 0 < first["equal"] < 1
    for name in ("reward", "equal", "trained", "format", "length", "grad_norm"):
        assert first[name] == pytest.approx(other[name], rel=1e-3)


def judge(episode: Episode) -> float:
    if os.environ.get("RANK") == "1":
        raise RuntimeError("the judge is down")
    return 0.0


def test_what_fails_in_another_process_is_told_by_the_first(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reward = ("--reward-func", "train.grpo.test_ways:judge")
    done = both(monkeypatch, PICK, model, tmp_path / "out", *reward)
    assert done.returncode == 1
    assert done.stderr.count("The reward function judge failed: RuntimeError: the judge is") == 1


class _Vllm:
    """Speaks as TRL's vLLM does."""

    mode = "colocate"
    max_completion_length = 0

    def generate(self, prompts: list[list[int]], images: Any, num_generations: int) -> Any:
        assert images is None and num_generations == 1
        replies = [[*range(10, 10 + self.max_completion_length)] for _ in prompts]
        logprobs = [[[-0.5] for _ in reply] for reply in replies]
        return prompts, replies, logprobs, replies


def test_vllm_answers_within_each_budget_and_up_to_each_stop() -> None:
    engine = VllmEngine(SimpleNamespace(vllm_generation=_Vllm()))
    asked = [
        Request((1, 2), 4, frozenset({99}), SamplingParams(), 0),
        Request((3,), 2, frozenset({99}), SamplingParams(), 0),
        Request((3,), 4, frozenset({12}), SamplingParams(), 0),
        Request((4,), 4, frozenset(), SamplingParams(), 0),
    ]
    found: dict[int, Completion] = {}
    engine.run(asked, found.__setitem__, lambda at: at != 3, lambda room: ())
    assert {at: (each.ids, each.stopped) for at, each in found.items()} == {
        0: ((10, 11, 12, 13), False), 1: ((10, 11), False), 2: ((10, 11, 12), True),
    }  # fmt: skip
    assert all(len(each.logprobs) == len(each.ids) for each in found.values())
    assert str(engine) == "vLLM (colocate)"


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"batch_size": 3}, "does not divide the 8 episodes"),
        ({"overrides": {"num_generations": "5"}}, "use --group-size|--groups"),
        ({"overrides": {"max_step": "4"}}, "Did you mean"),
        ({"vllm": "colocate"}, "vllm|vLLM"),
        ({"rewards": ("nowhere:f",)}, "cannot be imported"),
    ],
)
def test_what_cannot_be_is_said_before_anything_is_written(
    model: Path, tmp_path: Path, more: dict[str, Any], words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        grpo(PICK, str(model), tmp_path / "out", tried(**more))
    assert not (tmp_path / "out").exists()
