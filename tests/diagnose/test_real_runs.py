"""Diagnosis of real training runs."""

from __future__ import annotations

from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
from policy.models import saved
from train.short_runs import read_curve

from ludus import ToolEnvironment, grpo, tool
from ludus.data.episode import Episode
from ludus.diagnose import read_run
from ludus.errors import RunError
from ludus.train import GRPOConfig

HERE = "diagnose.test_real_runs"


class Plain(ToolEnvironment):
    """Gives half a point for saying nothing."""

    def reset(self, *, seed: int = 0) -> str:
        self.award(0.5)
        return f"Task {seed}."

    @tool
    def wait(self) -> str:
        """Wait."""
        return self.finish(0.0, "Done.")


class Other(Plain):
    """Gives nothing."""

    def reset(self, *, seed: int = 0) -> str:
        return f"Another task: {seed}."


class Endless(Plain):
    """Shows more than a tiny model can read."""

    def reset(self, *, seed: int = 0) -> str:
        return "word " * 3000


class EndlessAtTimes(Plain):
    """Shows more than that in every other task."""

    def reset(self, *, seed: int = 0) -> str:
        return "word " * (3000 if seed % 2 else 3)


def spread(episode: Episode) -> float:
    """Sets members of a group apart, and lies outside 0 and 1."""
    return 2.0 + sum(episode.tokens.ids) % 7 / 10 if episode.tokens else 2.0


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(saved(tmp_path_factory.mktemp("model") / "tiny"))


def small_config(**more: Any) -> GRPOConfig:
    usual: dict[str, Any] = {
        "steps": 4, "groups": 2, "group_size": 2, "max_episode_tokens": 4, "precision": "fp32",
        "device": "cpu",
    }  # fmt: skip
    return GRPOConfig(**usual | more)


def test_component_changes_match_the_log(model: str, tmp_path: Path) -> None:
    config = small_config(reward_funcs=(f"{HERE}:spread",), seed=3)
    grpo(f"{HERE}:Plain,{HERE}:Other", model, tmp_path / "out", config)
    lines = [line for line in read_curve(tmp_path / "out") if "reward" in line]
    diagnosis = read_run(tmp_path / "out").diagnose()
    assert (diagnosis.steps, [line["step"] for line in lines]) == (4, [1, 2, 3, 4])
    parts = {part.name: part for part in diagnosis.parts}
    assert set(parts) == {f"{HERE}:Plain", f"{HERE}:Other", "spread"}
    for name, part in parts.items():
        logged = [line[f"rewards/{name}/mean"] for line in lines]
        assert [part.initial, part.final] == pytest.approx([fmean(logged[:2]), fmean(logged[2:])])
    assert diagnosis.reward is not None and diagnosis.reward.initial > 2
    assert diagnosis.reward.initial == pytest.approx(fmean(line["reward"] for line in lines[:2]))


def test_run_stops_when_no_prompt_fits_the_context(model: str, tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"4 episodes .* 3,\d+ tokens"):
        grpo(f"{HERE}:Endless", model, tmp_path / "out", small_config())


def test_prompts_beyond_the_context_are_unscored(model: str, tmp_path: Path) -> None:
    grpo(f"{HERE}:EndlessAtTimes", model, tmp_path / "out", small_config(groups=4))
    run = read_run(tmp_path / "out")
    last, (cut, verdict, *_) = run.episodes.last_broken, run.diagnose().verdicts
    assert cut.name == "cut off" and "`max_episode_tokens`" in cut.advice
    assert verdict.name == "unscored episodes" and "2,048" in verdict.finding
    assert last is not None and last.fault is not None and last.fault.where == "model"
    assert set(run.episodes.cut_off_by) == {"episode"}
