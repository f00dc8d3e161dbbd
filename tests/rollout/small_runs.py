"""Runs of a few episodes, and agents that fail, cost money or are slow."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ludus.agents.agent import Agent, EpisodeContext, Player, Reply
from ludus.agents.oracle import OracleAgent
from ludus.data.episode import Episode, Usage
from ludus.data.episode_reader import episodes
from ludus.data.messages import Message
from ludus.rollout import CollectConfig, CollectResult
from ludus.rollout.collect import Collector, collect
from ludus.rollout.progress import (
    Notice,
    ProgressCallback,
    ProgressEvent,
    RunStarted,
    ignore_progress,
)

COUNTER = "world:Counter"


def read(folder: Path) -> list[Episode]:
    return sorted(episodes(folder / "episodes.jsonl"), key=lambda episode: episode.episode_id)


def quick_config(**fields: Any) -> CollectConfig:
    """A config that wastes no time on retries."""
    return CollectConfig(**{"retry_delay": 0.001, "reconnect_timeout": 5.0, **fields})


async def run(
    out: Path,
    agent: Agent | None = None,
    *,
    spec: str = COUNTER,
    n: int = 20,
    progress: ProgressCallback = ignore_progress,
    **fields: Any,
) -> CollectResult:
    config = quick_config(agent=agent, num_episodes=n, **fields)
    return await collect(spec, out, config, progress=progress)


class Flaky(OracleAgent):
    """Breaks in some episodes, for some attempts."""

    def __init__(self, breaks: Callable[[str, int], Exception | None]) -> None:
        self._breaks = breaks
        self._attempts: dict[str, int] = {}

    async def begin(self, context: EpisodeContext) -> Player:
        key = f"{context.seed}/{context.member}"
        self._attempts[key] = self._attempts.get(key, 0) + 1
        error = self._breaks(key, self._attempts[key])
        if error is not None:
            raise error
        return await super().begin(context)


class Priced(Agent):
    """Each reply costs a cent and a hundred tokens."""

    provider = "priced"

    async def begin(self, context: EpisodeContext) -> Player:
        class Payer(Player):
            async def act(
                self, messages: Sequence[Message], *, max_tokens: int | None = None
            ) -> Reply:
                await asyncio.sleep(0.001)
                usage = Usage(prompt_tokens=80, completion_tokens=20, cost=0.01)
                return Reply(Message(role="assistant", content="Hm."), usage=usage)

        return Payer()


class Warnings:
    """Keeps the warnings of a run."""

    def __init__(self) -> None:
        self.warnings: list[str] = []

    def __call__(self, event: ProgressEvent) -> None:
        if isinstance(event, Notice):
            self.warnings.append(event.message)


class Stopping(Warnings):
    """Calls `stop` as soon as a condition holds, and keeps the warnings."""

    def __init__(
        self, stop: Callable[[Collector], None], *, when: Callable[[Collector], bool]
    ) -> None:
        super().__init__()
        self._stop, self._when = stop, when

    def __call__(self, event: ProgressEvent) -> None:
        super().__call__(event)
        if isinstance(event, RunStarted) and isinstance(event.run, Collector):
            self._task = asyncio.create_task(self._wait(event.run))

    async def _wait(self, collector: Collector) -> None:
        while not self._when(collector):  # noqa: ASYNC110 - the collector has no such event
            await asyncio.sleep(0.001)
        self._stop(collector)


class Slow(OracleAgent):
    async def begin(self, context: EpisodeContext) -> Player:
        await asyncio.sleep(0.1)
        return await super().begin(context)
