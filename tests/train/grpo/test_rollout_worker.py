"""Rollouts for a trainer: stalls are reported, errors raised, and waits ended on request."""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
from world import serving

from ludus import ToolCall, ToolEnvironment, tool
from ludus.agents.agent import Agent, EpisodeContext, Player, Reply, build_tool_call_message
from ludus.data.messages import Message
from ludus.environment.mixture import parse_mixture
from ludus.errors import ConfigError, RunError
from ludus.rollout.config import RolloutConfig
from ludus.rollout.progress import PhaseProgress
from ludus.train.grpo.rollout_worker import RolloutWorker

HERE = "train.grpo.test_rollout_worker"
CONFIG = RolloutConfig(system_prompt=None)
IMPATIENT = replace(CONFIG, retry_delay=0.01, reconnect_timeout=5.0, stall_warning=0.1)
EPISODES = 6
TIMEOUT_S = 30


class Walk(ToolEnvironment):
    """Three turns."""

    def reset(self, *, seed: int | None = None) -> str:
        self.steps = 0
        return "Walk."

    @tool
    def walk(self) -> str:
        """Walk."""
        self.work()
        self.steps += 1
        return self.finish(1.0, "There.") if self.steps == 3 else "On."

    def work(self) -> None:
        pass


class Sleepy(Walk):
    """Blocks the event loop."""

    def work(self) -> None:
        time.sleep(0.1)


class Concurrent(Walk):
    """Runs in threads, and goes on only when all episodes have got as far."""

    blocking = True
    barrier = threading.Barrier(EPISODES)

    def work(self) -> None:
        self.barrier.wait(TIMEOUT_S)


class Stuck(Walk):
    """A reset that returns only when a warning was given."""

    warned = threading.Event()

    def reset(self, *, seed: int | None = None) -> str:
        assert self.warned.wait(TIMEOUT_S), "no warning"
        return super().reset(seed=seed)


class StuckInThread(Stuck):
    blocking = True


class Exiting(Walk):
    def reset(self, *, seed: int | None = None) -> str:
        sys.exit("Enough.")


class Walker(Agent):
    """Walks at every turn, after a short pause as a model has it."""

    provider = "walker"

    async def begin(self, context: EpisodeContext) -> Player:
        class WalkingPlayer(Player):
            async def act(
                self, messages: Sequence[Message], *, max_tokens: int | None = None
            ) -> Reply:
                await asyncio.sleep(0.01)
                return Reply(build_tool_call_message(ToolCall(name="walk"), position=len(messages)))

        return WalkingPlayer()


def build_worker(
    name: str, say: Callable[[str], None], config: RolloutConfig = IMPATIENT, **options: Any
) -> RolloutWorker:
    worker = RolloutWorker(parse_mixture(f"{HERE}:{name}"), config, say=say, **options)
    worker.agent = Walker()
    return worker


def play(worker: RolloutWorker) -> list[float | None]:
    """The rewards of a few episodes."""
    plan = worker.plan("run", seed=0, group_size=1)
    return [episode.reward for episode in worker.play(plan, range(EPISODES))]


def test_a_coroutine_that_exits_raises_and_the_worker_stays_usable() -> None:
    async def leave() -> None:
        sys.exit(3)

    with build_worker("Walk", print) as worker:
        with pytest.raises(RunError, match="SystemExit: 3"):
            worker.run(leave())
        assert play(worker) == [1.0] * EPISODES


def test_an_environment_that_exits_fails_the_preflight() -> None:
    with (
        build_worker("Exiting", print) as worker,
        pytest.raises(ConfigError, match="SystemExit: Enough"),
    ):
        worker.preflight(seed=0)


@pytest.mark.parametrize("name", ["Stuck", "StuckInThread"])
def test_a_hanging_reset_is_reported_by_the_preflight(name: str) -> None:
    warnings: list[str] = []

    def say(text: str) -> None:
        warnings.append(text)
        Stuck.warned.set()

    Stuck.warned.clear()
    with build_worker(name, say) as worker:
        worker.preflight(seed=0)
    assert f"{HERE}:{name}" in warnings[0] and "reset" in warnings[0]


def test_a_blocking_environment_runs_concurrently_in_threads() -> None:
    warnings: list[str] = []
    with build_worker("Concurrent", warnings.append, CONFIG) as worker:
        assert play(worker) == [1.0] * EPISODES
    assert warnings == []


def test_a_stop_request_ends_the_wait_for_an_unreachable_server() -> None:
    with serving(Walk) as served:
        config = replace(IMPATIENT, base_url=served.url)
        worker = build_worker("Walk", print, config, stop_requested=lambda: "interrupted")
        worker.__enter__()
        # While the server answers, a step is played to its end.
        assert play(worker) == [1.0] * EPISODES and worker.stop_reason is None
    with pytest.raises(RunError, match="unreachable"):
        play(worker)
    assert worker.stop_reason == "interrupted"
    worker.__exit__()


class SlowAgent(Walker):
    """Starts an episode only after the stall time."""

    def __init__(self, stall_expected: bool) -> None:
        self._stall_expected = stall_expected

    @property
    def stall_expected(self) -> bool:
        return self._stall_expected

    async def begin(self, context: EpisodeContext) -> Player:
        await asyncio.sleep(5 * IMPATIENT.stall_warning)
        return await super().begin(context)


@pytest.mark.parametrize("busy", [True, False])
def test_waiting_for_a_busy_model_is_not_reported(busy: bool) -> None:
    warnings: list[str] = []
    with build_worker("Walk", warnings.append) as worker:
        worker.agent = SlowAgent(busy)
        play(worker)
    # Warnings about an episode start with its id.
    assert any(warning.startswith("run-") for warning in warnings) is not busy


def test_progress_counts_episodes() -> None:
    phases: list[PhaseProgress] = []
    with build_worker("Walk", print, on_phase=phases.append) as worker:
        play(worker)
    (progress,) = phases
    assert (progress.done, progress.total, progress.unit) == (EPISODES, EPISODES, "episodes")
    assert progress.tokens is None, "the agent is no model of this process"
