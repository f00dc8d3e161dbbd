"""Decides how many worker processes a run uses, and starts them."""

from __future__ import annotations

import asyncio
import os
import pickle
import time
from collections import Counter
from collections.abc import Callable, Mapping

from ludus.agents.agent import Agent
from ludus.client.endpoint import LocalEndpoint
from ludus.errors import ConfigError, WorkersFailed
from ludus.rollout.attempts import EpisodeRunner
from ludus.rollout.endpoints import EnvironmentEndpoint
from ludus.rollout.episode_workers import EpisodeWorkers
from ludus.rollout.stats import RunStats

MEASURED_S = 1.0
"""Seconds of playing in this process from which the rest of the run is estimated."""
MIN_CPU_SHARE = 0.5
"""Share of that time for which this process has to compute: else it waits for something."""
MIN_SECONDS_PER_WORKER = 1.5
"""Seconds of playing that are worth the start of a worker, which imports the environment."""
MAX_WORKERS = 16
"""Limit of automatic workers: this process cannot record the episodes of many more."""


class WorkerLauncher:
    """Starts the workers of a run, and hands them to its `EpisodeRunner`.

    A given number of them starts with the run. Else the first episodes are played in this process,
    and workers start once there is enough left for them to do.
    """

    def __init__(
        self,
        count: int | None,
        runner: EpisodeRunner,
        endpoints: Mapping[str, EnvironmentEndpoint],
        stats: RunStats,
        warn: Callable[[str], None],
    ) -> None:
        self._count = count
        self._runner = runner
        self._endpoints = endpoints
        self._stats = stats
        self._warn = warn
        self._workers: EpisodeWorkers | None = None
        self._start: asyncio.Task[None] | None = None
        self._started_at, self._cpu_started_at = time.monotonic(), time.process_time()
        self._obstacle = find_obstacle(runner.agent, endpoints)
        if count is not None and count > 1 and self._obstacle is not None:
            raise ConfigError(f"`workers` = {count} is not possible: {self._obstacle}.")

    async def start(self) -> None:
        """Start the given number of workers, if there is one."""
        if self._count is not None and self._count > 1:
            await self._start_workers(self._count)

    def start_if_worthwhile(self, concurrency: int) -> None:
        """Start workers in the background, if the rest of the run takes long enough."""
        if self._count is not None or self._start is not None or self._obstacle is not None:
            return
        count = min(self._worthwhile_count(), concurrency)
        if count > 1:
            self._start = asyncio.create_task(self._start_in_background(count))

    async def close(self) -> None:
        """End the workers."""
        if self._start is not None:
            self._start.cancel()
            await asyncio.gather(self._start, return_exceptions=True)
        if self._workers is not None:
            await self._workers.close()

    def _worthwhile_count(self) -> int:
        seconds = time.monotonic() - self._started_at
        cpu_seconds = time.process_time() - self._cpu_started_at
        seconds_left = self._stats.seconds_left
        if seconds < MEASURED_S or cpu_seconds < MIN_CPU_SHARE * seconds or seconds_left is None:
            return 0
        return min(MAX_WORKERS, available_cores(), int(seconds_left / MIN_SECONDS_PER_WORKER))

    async def _start_in_background(self, count: int) -> None:
        try:
            await self._start_workers(count)
        except WorkersFailed as error:
            self._warn(str(error))

    async def _start_workers(self, count: int) -> None:
        specs = {each.name: spec for spec, each in self._endpoints.items()}
        runner = self._runner
        setup = pickle.dumps((runner.agent, specs, runner.limits, runner.system_prompt))
        self._workers = EpisodeWorkers(setup, count)
        await self._workers.start()
        runner.workers = self._workers


def available_cores() -> int:
    """The cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def find_obstacle(agent: Agent, endpoints: Mapping[str, EnvironmentEndpoint]) -> str | None:
    """Why worker processes cannot play these episodes; None if they can."""
    if not agent.is_stateless:
        return f"the agent {agent.provider!r} cannot be copied to other processes"
    for spec, each in endpoints.items():
        endpoint = each.endpoint
        if not isinstance(endpoint, LocalEndpoint):
            return f"{spec} does not run in this process"
        env = endpoint.env_spec
        if env.cls.__module__ == "__main__":
            return f"{spec} is defined in the script itself, which other processes cannot import"
        if env.is_async or env.single_thread or not env.concurrent or env.max_sessions is not None:
            return f"{spec} is asynchronous or limits its sessions"
    names = Counter(each.name for each in endpoints.values())
    return next((f"{n} specs are named {name}" for name, n in names.items() if n > 1), None)
