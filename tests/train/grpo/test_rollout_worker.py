"""Where the model under training plays: what hangs is named, and nothing is waited for in vain."""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from world import serving

from ludus import ToolCall, ToolEnvironment, tool
from ludus.agents.agent import Agent, EpisodeContext, Player, Reply
from ludus.data.messages import Message, build_tool_call_message
from ludus.environment.mixture import parse_mixture
from ludus.errors import ConfigError, RunError
from ludus.rollout.config import RolloutConfig
from ludus.rollout.loop import EpisodeLimits
from ludus.rollout.progress import PhaseProgress
from ludus.train.grpo.rollout_worker import RolloutWorker

HERE = "train.grpo.test_stage"
QUICK = RolloutConfig(retry_delay=0.01, reconnect_timeout=5.0, stall_warning=0.1)


class Walk(ToolEnvironment):
    """Three steps."""

    nap = 0.0

    def reset(self, *, seed: int | None = None) -> str:
        self.steps = 0
        return "Walk."

    @tool
    def walk(self) -> str:
        """Walk."""
        time.sleep(self.nap)
        self.steps += 1
        return self.finish(1.0, "There.") if self.steps == 3 else "On."


class Sleepy(Walk):
    """Works for long, and has all others wait."""

    nap = 0.1


class Considerate(Sleepy):
    """Works as long, in a thread."""

    blocking = True


class Stuck(Walk):
    """A reset that does not come back until somebody has heard of it."""

    heard = threading.Event()

    def reset(self, *, seed: int | None = None) -> str:
        assert self.heard.wait(10), "nobody was told"
        return super().reset(seed=seed)


class StuckAside(Stuck):
    """The same in a thread."""

    blocking = True


class Leaving(Walk):
    """Ends the process, or would like to."""

    def reset(self, *, seed: int | None = None) -> str:
        sys.exit("Enough.")


class Walker(Agent):
    """Thinks for a moment before each step, as a model does."""

    provider = "walker"

    async def begin(self, situation: EpisodeContext) -> Player:
        class Feet(Player):
            async def act(
                self, messages: Sequence[Message], *, max_tokens: int | None = None
            ) -> Reply:
                await asyncio.sleep(0.01)
                return Reply(build_tool_call_message(ToolCall(name="walk"), position=len(messages)))

        return Feet()


def staged(name: str, said: Callable[[str], None], **more: Any) -> RolloutWorker:
    given = {"limits": EpisodeLimits(), "system_prompt": None, "options": QUICK, "say": said}
    stage = RolloutWorker(parse_mixture(f"{HERE}:{name}"), **{**given, **more})
    stage.agent = Walker()
    return stage


def played(stage: RolloutWorker, episodes: int = 6) -> list[float | None]:
    plan = stage.plan("run", seed=0, group_size=1)
    return [episode.reward for episode in stage.play(plan, range(episodes))]


def test_a_thread_that_has_ended_is_not_waited_for() -> None:
    async def leave() -> None:
        sys.exit(3)

    with staged("Walk", print) as stage:
        with pytest.raises(RunError, match="SystemExit: 3 has ended their thread"):
            stage.run(leave())
        with pytest.raises(RunError, match="No more episodes"):
            stage.run(asyncio.sleep(0))


def test_an_environment_that_calls_exit_is_refused_like_one_that_raises() -> None:
    with staged("Leaving", print) as stage, pytest.raises(ConfigError, match="SystemExit: Enough"):
        stage.rehearse(stage.plan("run", seed=0, group_size=1))


@pytest.mark.parametrize("name", ["Stuck", "StuckAside"])
def test_a_reset_that_hangs_is_named_before_anything_is_played(name: str) -> None:
    said: list[str] = []

    def say(words: str) -> None:
        said.append(words)
        Stuck.heard.set()

    Stuck.heard.clear()
    with staged(name, say) as stage:
        stage.rehearse(stage.plan("run", seed=0, group_size=1))
    assert f"{HERE}:{name}" in said[0] and "reset" in said[0]


def test_an_environment_that_holds_up_all_others_is_named_once() -> None:
    said: list[str] = []
    with staged("Sleepy", said.append, options=RolloutConfig()) as stage:
        assert [played(stage), played(stage)] == [[1.0] * 6] * 2
    (line,) = said
    assert line.startswith(f"{HERE}:Sleepy ") and "blocking = True" in line


def test_one_that_works_in_a_thread_holds_up_nobody() -> None:
    said: list[str] = []
    with staged("Considerate", said.append, options=RolloutConfig()) as stage:
        began = time.monotonic()
        played(stage)
        assert time.monotonic() - began < 6 * 3 * Sleepy.nap
    assert said == []


def test_a_server_is_not_waited_for_once_somebody_wants_to_stop() -> None:
    with serving(Walk) as served:
        stage = staged("Walk", print, base_url=served.url, stopping=lambda: "interrupted")
        stage.__enter__()
        # Who plays is not kept from ending a step.
        assert played(stage) == [1.0] * 6 and stage.stop_reason is None
    with pytest.raises(RunError, match=r"Nobody answers at .*, and the run was interrupted"):
        played(stage)
    assert stage.stop_reason == "interrupted"
    stage.__exit__()


class Thinker(Walker):
    """Takes its time, and is known to be at work or not."""

    def __init__(self, excused: bool) -> None:
        self._excused = excused

    @property
    def excused(self) -> bool:
        return self._excused

    async def begin(self, situation: EpisodeContext) -> Player:
        await asyncio.sleep(0.5)
        return await super().begin(situation)


@pytest.mark.parametrize("excused", [True, False])
def test_a_model_that_is_at_work_does_not_hang(excused: bool) -> None:
    said: list[str] = []
    with staged("Walk", said.append) as stage:
        stage.agent = Thinker(excused)
        played(stage)
    assert any("has waited" in words for words in said) is not excused


def test_whoever_watches_is_given_how_far_the_playing_is() -> None:
    phases: list[PhaseProgress] = []
    with staged("Walk", print, phase=phases.append) as stage:
        played(stage)
    (playing,) = phases
    assert (playing.done, playing.total, playing.unit) == (6, 6, "episodes")
    assert playing.tokens is None, "no model of this process has played"
