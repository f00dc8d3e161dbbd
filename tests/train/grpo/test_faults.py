"""What breaks on the way costs nothing that was learned, and is nobody's zero."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, cast

import pytest
from world import serving

from ludus import Episode, episodes
from ludus.data.episode import Fault, StopReason
from ludus.errors import EnvironmentNotFound, RunError
from ludus.rollout.config import RolloutConfig
from ludus.train import grpo
from ludus.train.grpo import monitor, rollout_worker
from ludus.train.grpo.group_rollouts import GroupRollouts
from train.grpo.trials import PICK, Pick, tried
from train.lessons import Seen, curve


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
    monkeypatch.setattr(
        rollout_worker, "RolloutConfig", lambda: RolloutConfig(max_attempts=2, retry_delay=0.01)
    )


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


def test_why_it_ends_is_told_also_where_no_checkpoint_can_be_made(
    model: Path, tmp_path: Path
) -> None:
    Gone.left, out = 17, tmp_path / "out"
    torn = out / "checkpoints" / "checkpoint-2"

    class InTheWay(Seen):
        def step(self, line: Mapping[str, Any]) -> None:
            # Part of a checkpoint can be written, and the rest cannot.
            (torn / "model.safetensors").mkdir(parents=True, exist_ok=True)

    seen = InTheWay()
    with pytest.raises(RunError, match="nobody is there"):
        grpo("train.grpo.test_faults:Gone", str(model), out, tried(steps=5), progress=seen)
    assert [words for words in seen.words if words.startswith("No checkpoint could be made of")]
    assert not torn.exists() and [line["step"] for line in curve(out)] == [1, 2]


def test_a_checkpoint_that_is_there_is_not_written_over(model: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    written = []
    # One for the rehearsal and a step; then for the rehearsal alone.
    for Gone.left in (9, 1):
        with pytest.raises(RunError, match="nobody is there"):
            grpo("train.grpo.test_faults:Gone", str(model), out, tried(steps=5))
        weights = out / "checkpoints" / "checkpoint-1" / "model.safetensors"
        written.append(weights.stat().st_mtime_ns)
    assert written[0] == written[1]


class Away(Seen):
    """The server goes away after the second step, and then there is a wish to stop."""

    def __init__(self, server: ExitStack) -> None:
        super().__init__()
        self.server = server
        self.wish: str | None = None

    def step(self, line: Mapping[str, Any]) -> None:
        super().step(line)
        if line["step"] == 2:
            self.server.close()

    def say(self, words: str) -> None:
        if words.startswith("Nobody answers"):
            self.wish = "interrupted"

    @property
    def stopping(self) -> str | None:
        return self.wish


def test_who_stops_while_a_server_is_waited_for_keeps_what_was_learned(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(monitor, "SILENCE_WARNING_S", 0.0)
    out, settings, server = tmp_path / "out", tried(steps=4), ExitStack()
    url = server.enter_context(serving(Pick)).url
    stopped = grpo(PICK, str(model), out, settings, base_url=url, progress=Away(server))
    assert (stopped.stopped, stopped.steps) == ("interrupted", 2)
    with serving(Pick, port=int(url.rpartition(":")[2])):
        outcome = grpo(PICK, str(model), out, settings, base_url=url)
    assert (outcome.resumed_from, outcome.steps) == (2, 4)
    steps = [episode.agent["step"] for episode in episodes(out / "episodes.jsonl")]
    assert steps == [step for step in range(1, 5) for _ in range(8)]


def test_an_environment_that_is_not_there_leaves_nothing_behind(
    model: Path, tmp_path: Path
) -> None:
    with pytest.raises(EnvironmentNotFound, match="No environment named 'nowhere'"):
        grpo("nowhere", str(model), tmp_path / "out", tried())
    assert not (tmp_path / "out").exists()


def an_episode(task: str, fault: Fault | None) -> Episode:
    reason = StopReason.DONE if fault is None else StopReason.BROKEN
    return Episode(episode_id=task, stop_reason=reason, environment="e", group_id=task, error=fault)


def test_tasks_that_nobody_can_take_on_end_a_run_when_none_or_no_more_can_be_played() -> None:
    too_long = Fault(kind="RequestRefused", where="model", message="Too long.")
    vain = [an_episode(task, too_long) for task in "ab"]
    rollouts = GroupRollouts(*[cast(Any, None)] * 6)
    with pytest.raises(RunError, match="Not one of 2 episodes could be played: Too long"):
        rollouts._check_failures(vain)
    for _ in range(2):
        rollouts._check_failures([an_episode("a", None), vain[1]])
        rollouts._check_failures(vain)
        rollouts._check_failures(vain)
    with pytest.raises(RunError, match="Not one of 2"):
        rollouts._check_failures(vain)
