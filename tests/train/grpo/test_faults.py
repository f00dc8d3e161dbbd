"""What breaks on the way costs nothing that was learned, and is nobody's zero."""

from __future__ import annotations

from pathlib import Path

import pytest

from ludus import episodes
from ludus.data.episode import StopReason
from ludus.errors import EnvironmentNotFound, RunError
from ludus.rollout.tuning import Tuning
from ludus.train import grpo
from ludus.train.grpo import stage
from train.grpo.trials import Pick, tried
from train.lessons import curve


class Shaky(Pick):
    """Breaks down for some of its tasks, however often it is asked."""

    def worth(self, letter: str) -> float:
        if letter in "de":
            raise OSError("the wheel came off")
        return super().worth(letter)


class Gone(Pick):
    """Works for a while, and then for nobody."""

    left = 40

    def reset(self, *, seed: int | None = None) -> str:
        Gone.left -= 1
        if Gone.left < 0:
            raise OSError("nobody is there")
        return super().reset(seed=seed)


@pytest.fixture(autouse=True)
def _hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stage, "Tuning", lambda: Tuning(attempts=2, retry_pause=0.01))


def test_a_broken_episode_is_left_out_and_not_a_zero(model: Path, tmp_path: Path) -> None:
    grpo("train.grpo.test_faults:Shaky", str(model), tmp_path / "out", tried(steps=2, groups=3))
    played = list(episodes(tmp_path / "out" / "episodes.jsonl"))
    broken = [episode for episode in played if episode.stop_reason is StopReason.BROKEN]
    assert broken and all(episode.reward is None for episode in broken)
    log = curve(tmp_path / "out")
    for number, line in enumerate(log):
        of_step = [each for each in played if each.agent["step"] == number + 1]
        rewards = [each.reward for each in of_step if each.reward is not None]
        assert line["reward"] == pytest.approx(sum(rewards) / len(rewards))
        assert line["unscored"] == pytest.approx(1 - len(rewards) / len(of_step))


def test_what_was_learned_is_kept_when_the_environment_goes_away(
    model: Path, tmp_path: Path
) -> None:
    # One for the rehearsal, and two steps.
    Gone.left = 17
    settings = tried(steps=5)
    spec, out = "train.grpo.test_faults:Gone", tmp_path / "out"
    with pytest.raises(RunError, match=r"Not one of 8 .* played: .*nobody is there"):
        grpo(spec, str(model), out, settings)
    assert [line["step"] for line in curve(out)] == [1, 2]
    Gone.left = 1000
    outcome = grpo(spec, str(model), out, settings)
    assert (outcome.resumed_from, outcome.steps) == (2, 5)
    steps = [episode.agent["step"] for episode in episodes(out / "episodes.jsonl")]
    assert steps == [step for step in range(1, 6) for _ in range(8)]


def test_an_environment_that_is_not_there_leaves_nothing_behind(
    model: Path, tmp_path: Path
) -> None:
    with pytest.raises(EnvironmentNotFound, match="No environment named 'nowhere'"):
        grpo("nowhere", str(model), tmp_path / "out", tried())
    assert not (tmp_path / "out").exists()
