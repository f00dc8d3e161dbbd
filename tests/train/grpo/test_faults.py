"""Faults of environments and servers: broken episodes, checkpoints on errors, and resuming."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest
from world import serving

from ludus import Episode, grpo
from ludus.data.episode import EpisodeFault, StopReason
from ludus.errors import EnvironmentNotFound, RunError, TrainingDiverged
from ludus.rollout.config import RolloutConfig
from ludus.rollout.held_out_tasks import MIN_TASKS
from ludus.train.grpo import grpo_config, rollout_worker
from ludus.train.grpo.group_rollouts import GroupRollouts
from ludus.train.grpo.policy_loss import PolicyLoss
from train.grpo.toy_environments import PICK, Pick, read_episodes, small_config
from train.short_runs import RecordingProgress, read_curve


class Shaky(Pick):
    """Raises for some letters, also when the episode is retried."""

    def reward_of(self, letter: str) -> float:
        if letter in "de":
            raise OSError("the wheel came off")
        return super().reward_of(letter)


PROBED = 2 * MIN_TASKS
"""Resets that find out that there are too few different tasks to hold some out."""


class Failing(Pick):
    """Raises after `left` resets."""

    left = 40

    def reset(self, *, seed: int | None = None) -> str:
        Failing.left -= 1
        if Failing.left < 0:
            raise OSError("the server is down")
        return super().reset(seed=seed)


@pytest.fixture(autouse=True)
def _retry_quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        grpo_config, "RolloutConfig", partial(RolloutConfig, max_attempts=2, retry_delay=0.01)
    )


def test_broken_episodes_are_unscored_and_do_not_count_as_zero(model: Path, tmp_path: Path) -> None:
    grpo(
        "train.grpo.test_faults:Shaky",
        str(model),
        tmp_path / "out",
        small_config(steps=2, groups=3),
    )
    episodes = read_episodes(tmp_path / "out")
    broken = [episode for episode in episodes if episode.stop_reason is StopReason.BROKEN]
    assert broken and all(episode.reward is None for episode in broken)
    log = read_curve(tmp_path / "out")
    for number, line in enumerate(log):
        of_step = [each for each in episodes if each.agent["step"] == number + 1]
        rewards = [each.reward for each in of_step if each.reward is not None]
        assert line["reward"] == pytest.approx(sum(rewards) / len(rewards))
        assert line["unscored"] == pytest.approx(1 - len(rewards) / len(of_step))


def test_a_checkpoint_is_saved_when_the_environment_fails(model: Path, tmp_path: Path) -> None:
    # One for the preflight, and two steps.
    Failing.left = PROBED + 17
    config = small_config(steps=5)
    spec, out = "train.grpo.test_faults:Failing", tmp_path / "out"
    with pytest.raises(RunError, match=r"8 episodes .*server is down"):
        grpo(spec, str(model), out, config)
    assert [line["step"] for line in read_curve(out)] == [1, 2]
    Failing.left = 1000
    result = grpo(spec, str(model), out, config)
    assert (result.resumed_from, result.steps) == (2, 5)
    steps = [episode.agent["step"] for episode in read_episodes(out)]
    assert steps == [step for step in range(1, 6) for _ in range(8)]


def test_the_cause_is_raised_also_when_the_checkpoint_cannot_be_saved(
    model: Path, tmp_path: Path
) -> None:
    Failing.left, out = PROBED + 17, tmp_path / "out"
    incomplete = out / "checkpoints" / "checkpoint-2"

    class BlockingDisk(RecordingProgress):
        def step(self, line: Mapping[str, Any]) -> None:
            # A folder where the weights belong: the rest of the checkpoint can be written.
            (incomplete / "model.safetensors").mkdir(parents=True, exist_ok=True)

    seen = BlockingDisk()
    with pytest.raises(RunError, match="the server is down"):
        grpo(
            "train.grpo.test_faults:Failing", str(model), out, small_config(steps=5), progress=seen
        )
    assert any("checkpoint" in text and "step 2" in text for text in seen.messages)
    assert not incomplete.exists() and [line["step"] for line in read_curve(out)] == [1, 2]


def test_an_existing_checkpoint_of_the_step_is_not_overwritten(model: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    written = []
    # One for the preflight and a step; then for the preflight alone.
    for Failing.left in (PROBED + 9, PROBED + 1):
        with pytest.raises(RunError, match="the server is down"):
            grpo("train.grpo.test_faults:Failing", str(model), out, small_config(steps=5))
        weights = out / "checkpoints" / "checkpoint-1" / "model.safetensors"
        written.append(weights.stat().st_mtime_ns)
    assert written[0] == written[1]


def test_a_loss_that_is_not_finite_stops_the_run_without_a_checkpoint(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loss: Any = PolicyLoss.__call__

    def nan_loss(*arguments: Any) -> Any:
        return loss(*arguments) * float("nan")

    monkeypatch.setattr(PolicyLoss, "__call__", nan_loss)
    config = small_config(zero_variance_groups="keep")
    with pytest.raises(TrainingDiverged, match="step 1: the loss"):
        grpo(PICK, str(model), tmp_path / "out", config)
    assert not (tmp_path / "out" / "checkpoints").exists()


class StopWhenUnreachable(RecordingProgress):
    """Stops the server after the second step, and the run when that is reported."""

    def __init__(self, server: ExitStack) -> None:
        super().__init__()
        self.server = server
        self.reason: str | None = None

    def step(self, line: Mapping[str, Any]) -> None:
        super().step(line)
        if line["step"] == 2:
            self.server.close()

    def say(self, words: str) -> None:
        if "unreachable" in words:
            self.reason = "interrupted"

    @property
    def stopping(self) -> str | None:
        return self.reason


def test_stopping_while_a_server_is_unreachable_saves_a_checkpoint(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rollout_worker, "UNREACHABLE_WARNING_S", 0.0)
    out, server = tmp_path / "out", ExitStack()
    url = server.enter_context(serving(Pick)).url
    config = small_config(steps=4, base_url=url)
    stopped = grpo(PICK, str(model), out, config, progress=StopWhenUnreachable(server))
    assert (stopped.stopped, stopped.steps) == ("interrupted", 2)
    with serving(Pick, port=int(url.rpartition(":")[2])):
        result = grpo(PICK, str(model), out, config)
    assert (result.resumed_from, result.steps) == (2, 4)
    steps = [episode.agent["step"] for episode in read_episodes(out)]
    assert steps == [step for step in range(1, 5) for _ in range(8)]


def test_an_unknown_environment_leaves_no_output_folder(model: Path, tmp_path: Path) -> None:
    with pytest.raises(EnvironmentNotFound, match="nowhere"):
        grpo("nowhere", str(model), tmp_path / "out", small_config())
    assert not (tmp_path / "out").exists()


def build_episode(task: str, fault: EpisodeFault | None) -> Episode:
    reason = StopReason.DONE if fault is None else StopReason.BROKEN
    return Episode(episode_id=task, stop_reason=reason, environment="e", group_id=task, error=fault)


def test_consecutive_steps_without_playable_episodes_end_the_run() -> None:
    too_long = EpisodeFault(kind="RequestRefused", where="model", message="Too long.")
    failed = [build_episode(task, too_long) for task in "ab"]
    rollouts = GroupRollouts(*[cast(Any, None)] * 6)
    with pytest.raises(RunError, match=r"2 episodes .*Too long"):
        rollouts._check_failures(failed)
    for _ in range(2):
        rollouts._check_failures([build_episode("a", None), failed[1]])
        rollouts._check_failures(failed)
        rollouts._check_failures(failed)
    with pytest.raises(RunError, match="2 episodes"):
        rollouts._check_failures(failed)
