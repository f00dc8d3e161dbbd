"""Decides how many worker processes a run uses, and starts them."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Mapping

from ludus.agents.agent import Agent
from ludus.client.endpoint import Endpoint, LocalEndpoint
from ludus.errors import ConfigError, WorkersFailed
from ludus.rollout.attempts import EpisodeRunner
from ludus.rollout.available_cores import available_cores
from ludus.rollout.block_work import EpisodePlay
from ludus.rollout.endpoints import EnvironmentEndpoint
from ludus.rollout.episode_workers import EpisodeWorkers
from ludus.rollout.process_worker import ProcessWorkers
from ludus.rollout.ray_cluster import RayCluster
from ludus.rollout.stats import RunStats
from ludus.rollout.worker import WorkerSource

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

    A given number of them, or those of a cluster, start with the run. Else the first episodes are
    played in this process, and workers start once there is enough left for them to do.
    """

    def __init__(
        self,
        count: int | None,
        runner: EpisodeRunner,
        endpoints: Mapping[str, EnvironmentEndpoint],
        stats: RunStats,
        warn: Callable[[str], None],
        *,
        max_workers: int,
        cluster: RayCluster | None = None,
    ) -> None:
        self._count = count
        self._cluster = cluster
        self._runner = runner
        self._endpoints = endpoints
        self._stats = stats
        self._warn = warn
        self._max_workers = max_workers
        self._workers: EpisodeWorkers | None = None
        self._start: asyncio.Task[None] | None = None
        self._started_at, self._cpu_started_at = time.monotonic(), time.process_time()
        self._reason_against = reason_against_workers(runner.agent, endpoints)

    async def start(self) -> None:
        """Start the given number of workers, if there is one, or those of the cluster."""
        if self._cluster is not None:
            if self._reason_against is None:
                from ludus.rollout.ray_worker import RayWorkers

                source = RayWorkers(self._cluster, self._work())
                count = min(self._count or self._cluster.num_cores, self._max_workers)
                await self._start_workers(source, count)
        elif self._count is not None and self._count > 1:
            await self._start_processes(self._count)

    def start_if_worthwhile(self) -> None:
        """Start workers in the background, if the rest of the run takes long enough."""
        decided = self._cluster is not None or self._count is not None
        if decided or self._start is not None or self._reason_against is not None:
            return
        if (count := self._worthwhile_count()) > 1:
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
        worthwhile = int(seconds_left / MIN_SECONDS_PER_WORKER)
        return min(MAX_WORKERS, available_cores(), worthwhile, self._max_workers)

    async def _start_in_background(self, count: int) -> None:
        try:
            await self._start_processes(count)
        except WorkersFailed as error:
            self._warn(str(error))

    async def _start_processes(self, count: int) -> None:
        await self._start_workers(ProcessWorkers(self._work()), min(count, self._max_workers))

    async def _start_workers(self, source: WorkerSource, count: int) -> None:
        self._workers = EpisodeWorkers(source, count, self._warn)
        await self._workers.start()
        self._runner.workers = self._workers

    def _work(self) -> EpisodePlay:
        return EpisodePlay(
            agent=self._runner.agent,
            specs={each.name: spec for spec, each in self._endpoints.items()},
            limits=self._runner.limits,
            system_prompt=self._runner.system_prompt,
        )


def check_workers(
    count: int | None,
    agent: Agent,
    endpoints: Mapping[str, EnvironmentEndpoint],
    cluster: RayCluster | None = None,
) -> None:
    """Raise where workers or a cluster are asked for and cannot play these episodes."""
    if cluster is not None:
        for spec, each in endpoints.items():
            if (reason := _reason_not_portable(spec, each.endpoint)) is not None:
                raise ConfigError(f"`ray`: {reason}. Leave it out.")
        return
    reason = reason_against_workers(agent, endpoints)
    if count is not None and count > 1 and reason is not None:
        raise ConfigError(f"`workers` cannot be {count}: {reason}. Leave it out.")


def reason_against_workers(
    agent: Agent, endpoints: Mapping[str, EnvironmentEndpoint]
) -> str | None:
    """Why worker processes cannot play these episodes; None if they can."""
    if not agent.is_stateless:
        return f"the agent {agent.provider!r} cannot be copied to other processes"
    for spec, each in endpoints.items():
        if (reason := _reason_not_portable(spec, each.endpoint)) is not None:
            return reason
        assert isinstance(each.endpoint, LocalEndpoint)
        env = each.endpoint.env_spec
        if env.is_async or env.single_thread or not env.concurrent or env.max_sessions is not None:
            return f"{spec} is asynchronous or limits its sessions"
    names = Counter(each.name for each in endpoints.values())
    return next((f"{n} specs are named {name}" for name, n in names.items() if n > 1), None)


def _reason_not_portable(spec: str, endpoint: Endpoint) -> str | None:
    """Why other processes cannot run this environment."""
    if not isinstance(endpoint, LocalEndpoint):
        return f"{spec} does not run in this process"
    if endpoint.env_spec.cls.__module__ == "__main__":
        return f"{spec} is defined in the script itself, which other processes cannot import"
    return None
