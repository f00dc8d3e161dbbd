"""Episodes of a round: collected with the progress and the stop requests of a training."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from ludus.client.event_loop import run_sync
from ludus.environment.mixture import Mixture
from ludus.policy.device import release_gpu_memory
from ludus.rollout.collect import CollectResult, collect
from ludus.rollout.config import CollectConfig
from ludus.rollout.episode_run import EpisodeRun
from ludus.rollout.progress import Notice, PhaseProgress, ProgressEvent, RunStarted
from ludus.train.progress import TrainProgress

_POLL_INTERVAL_S = 0.2


class Stopped(Exception):
    """The user has asked to stop; what was done is kept."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class RoundProgress:
    """A training's progress in which every phase says which round it belongs to."""

    def __init__(self, progress: TrainProgress, number: int, total: int) -> None:
        self._progress = progress
        self._prefix = f"Round {number} of {total}: "

    def show(self, phase: str) -> None:
        self.phase(PhaseProgress(phase, in_log=True))

    def phase(self, progress: PhaseProgress) -> None:
        # The phase stays the same object: whoever does the work updates its counts.
        progress.phase = f"{self._prefix}{progress.phase[:1].lower()}{progress.phase[1:]}"
        self._progress.phase(progress)

    def begin(self, total_steps: int, resumed_from: int | None) -> None:
        self._progress.begin(total_steps, resumed_from)

    def step(self, line: Mapping[str, Any]) -> None:
        self._progress.step(line)

    def say(self, words: str) -> None:
        self._progress.say(words)

    @property
    def stopping(self) -> str | None:
        return self._progress.stopping


def play(
    environments: Mixture, run: Path, config: CollectConfig, phase: str, progress: RoundProgress
) -> CollectResult:
    """Collect the episodes of a run folder, or the rest of them. Raises `Stopped` on request."""
    shown = _PlayProgress(progress, phase)

    async def main() -> CollectResult:
        async with AsyncExitStack() as stack:
            for agent in (config.agent, config.tutor):
                if agent is not None:
                    await stack.enter_async_context(agent)
            watch = asyncio.create_task(shown.watch())
            stack.callback(watch.cancel)
            return await collect(environments, run, config, progress=shown)

    try:
        result = run_sync(main())
    finally:
        release_gpu_memory()
    reason = result.stop_reason or progress.stopping
    if reason is not None:
        raise Stopped(reason)
    return result


class _PlayProgress:
    """Shows episodes as a phase of a training, and stops when the training is to stop."""

    def __init__(self, progress: RoundProgress, phase: str) -> None:
        self._progress = progress
        self._title = phase
        self._run: EpisodeRun | None = None
        self._phase: PhaseProgress | None = None

    def __call__(self, event: ProgressEvent) -> None:
        match event:
            case PhaseProgress():
                self._progress.phase(event)
            case RunStarted():
                self._run = event.run
                planned = event.run.stats.planned
                self._phase = PhaseProgress(self._title, planned, "episodes", in_log=True)
                self._progress.phase(self._phase)
            case Notice():
                self._progress.say(event.message)

    async def watch(self) -> None:
        """Update the counts, and pass on a request to stop."""
        while True:
            await asyncio.sleep(_POLL_INTERVAL_S)
            if self._run is None or self._phase is None:
                continue
            self._phase.advance(self._run.stats.done - self._phase.done)
            if (reason := self._progress.stopping) is not None:
                self._run.drain(reason)
