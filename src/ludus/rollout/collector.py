"""Plays the pending episodes of a run: sessions, retries, worker processes and stalls."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Coroutine, Iterable, Mapping

from ludus.agents.agent import Agent
from ludus.client.endpoint import Endpoint, LocalEndpoint
from ludus.data.episode import Episode, Usage
from ludus.data.journal import Journal
from ludus.data.resume_index import ResumeIndex
from ludus.data.run_folder import RunFolder
from ludus.errors import ConfigError, LudusError, WorkersFailed
from ludus.rollout.config import CollectConfig
from ludus.rollout.endpoints import EnvironmentEndpoint
from ludus.rollout.episode_run import EpisodeRun
from ludus.rollout.loop import build_broken_record, retry_faults, run_attempt
from ludus.rollout.monitoring import EpisodeStatus, Watchdog
from ludus.rollout.plan import Assignment, Plan
from ludus.rollout.process_worker import ProcessWorkers, available_cores
from ludus.rollout.progress import PhaseProgress, ProgressCallback
from ludus.rollout.ray_cluster import RayCluster
from ludus.rollout.session_pool import SessionPool
from ludus.rollout.stats import RunStats
from ludus.rollout.workers import EpisodePlay, EpisodeWorkers, WorkerSource

MAX_QUEUED_EPISODES = 32
"""Episodes beyond the agent's concurrency limit that are kept ready for the next free call."""
MEASURED_S = 1.0
"""Seconds of playing in this process from which the rest of the run is estimated."""
MIN_CPU_SHARE = 0.5
"""Share of that time for which this process has to compute: else it waits for something."""
MIN_SECONDS_PER_WORKER = 1.5
"""Seconds of playing that are worth the start of a worker, which imports the environment."""
MAX_WORKERS = 16
"""Limit of automatic workers: this process cannot record the episodes of many more."""


class Collector(EpisodeRun):
    """One start of one run: plays what is pending in `index` and appends it to the journal."""

    agent: Agent

    def __init__(
        self,
        config: CollectConfig,
        agent: Agent,
        folder: RunFolder,
        plan: Plan,
        endpoints: Mapping[str, EnvironmentEndpoint],
        index: ResumeIndex,
        progress: ProgressCallback,
        *,
        cluster: RayCluster | None = None,
    ) -> None:
        stats = RunStats.from_index(index, config.total_episodes, retry_broken=config.retry_broken)
        super().__init__(folder, stats, config.budget, progress)
        self.config, self.concurrency = config, config.concurrency
        self.agent = agent
        self.decoding = PhaseProgress(count_tokens=lambda: agent.sampled_tokens)
        self.statuses: dict[str, EpisodeStatus] = {}
        """What each active episode is doing, by episode id."""
        self._plan = plan
        self._endpoints = endpoints
        self._cluster = cluster
        self._pending = index.pending_indices(
            config.total_episodes, retry_broken=config.retry_broken
        )
        self._pools = {
            spec: SessionPool(each.endpoint, reconnect_timeout=config.reconnect_timeout)
            for spec, each in endpoints.items()
        }
        self._watchdog = Watchdog(
            self.statuses,
            self.warn,
            timeout=config.stall_warning,
            model_excused=lambda: agent.stall_expected,
        )
        self._not_started = 0
        """Episodes whose task was created and has not run yet."""
        self._may_start_workers = (
            cluster is None
            and config.workers is None
            and reason_against_workers(agent, endpoints) is None
        )
        self._workers_start: asyncio.Task[None] | None = None
        self._cpu_started_at = time.process_time()

    @property
    def unreachable_server(self) -> str | None:
        for pool in self._pools.values():
            if pool.unreachable_since is not None:
                return pool.endpoint.spec
        return None

    @property
    def max_active(self) -> float:
        """Maximum number of episodes in progress at the moment.

        More than the agent's concurrency limit: some episodes are always waiting for their
        environment or for a retry, and a free call should find another one ready.
        """
        limit = self.agent.concurrency_limit
        active = self.concurrency if limit is None else limit + min(limit, MAX_QUEUED_EPISODES)
        if self.workers is not None:
            # They are fewer than the concurrency limit; what is more than that waits for them.
            active = self.workers.capacity
        return min(active, self.budget.max_active(self.stats))

    def exhausted_reason(self) -> str | None:
        active_usage: list[Usage] = []
        if self.budget.limits_spending:
            active_usage += (status.usage for status in self.statuses.values())
            active_usage += [Usage()] * self._not_started
        return self.budget.exhausted_reason(self.stats, active_usage)

    async def run(self, journal: Journal) -> None:
        with self._watchdog:
            await super().run(journal)

    async def open(self) -> None:
        """Start the given number of workers, if there is one, or those of the cluster."""
        count = self.config.workers
        if self._cluster is not None:
            if reason_against_workers(self.agent, self._endpoints) is None:
                from ludus.rollout.ray_cluster import RayWorkers

                source = RayWorkers(self._worker_task())
                await self._start_workers(source, count or self._cluster.num_cores)
        elif count is not None and count > 1:
            await self._start_workers(ProcessWorkers(self._worker_task()), count)

    def on_tick(self) -> None:
        """Feed the watchdog, and start workers once the rest of the run takes long enough."""
        self._watchdog.heartbeat()
        if self._may_start_workers and (count := self._worthwhile_workers()) > 1:
            self._may_start_workers = False
            self._workers_start = asyncio.create_task(self._start_workers_late(count))

    async def close(self) -> None:
        if self._workers_start is not None:
            self._workers_start.cancel()
            await asyncio.gather(self._workers_start, return_exceptions=True)
        await super().close()
        await asyncio.gather(*(pool.close() for pool in self._pools.values()))

    def items(self) -> Iterable[int]:
        return self._pending

    def work(self, item: int) -> Coroutine[None, None, None]:
        self._not_started += 1
        return self._run_episode(item)

    async def _run_episode(self, index: int) -> None:
        self._not_started -= 1
        assignment, pool = self._plan[index], self._pools[self._plan.spec_of(index)]
        try:
            episode = await retry_faults(
                lambda attempt: self._run_attempt(assignment, pool, attempt),
                max_attempts=self.config.max_attempts,
                retry_delay=self.config.retry_delay,
                stopping=self.stopping,
            )
        finally:
            self.statuses.pop(assignment.episode_id, None)
        if episode is not None:
            self.record(episode, self.statuses)
        self.end(assignment.episode_id)

    async def _run_attempt(
        self, assignment: Assignment, pool: SessionPool, attempt: int
    ) -> Episode:
        status = EpisodeStatus(assignment.episode_id, assignment.environment)
        self.statuses[assignment.episode_id] = status
        limits = self.config.limits
        if self.workers is None:
            episode = await run_attempt(
                assignment,
                self.agent,
                pool,
                limits=limits,
                system_prompt=self.config.system_prompt,
                attempt=attempt,
                status=status,
            )
        else:
            try:
                with status.track("environment", "a worker"):
                    episode = await self.workers.run((assignment, attempt))
            except LudusError as error:
                episode = build_broken_record(
                    assignment, self.agent, limits, error, attempt=attempt, status=status
                )
        self.stats.record_attempt(episode)
        return episode

    def _worthwhile_workers(self) -> int:
        seconds, seconds_left = self.stats.seconds, self.stats.seconds_left
        cpu_seconds = time.process_time() - self._cpu_started_at
        if seconds < MEASURED_S or cpu_seconds < MIN_CPU_SHARE * seconds or seconds_left is None:
            return 0
        worthwhile = int(seconds_left / MIN_SECONDS_PER_WORKER)
        return min(MAX_WORKERS, available_cores(), worthwhile, self.concurrency)

    async def _start_workers_late(self, count: int) -> None:
        try:
            await self._start_workers(ProcessWorkers(self._worker_task()), count)
        except WorkersFailed as error:
            self.warn(str(error))

    async def _start_workers(self, source: WorkerSource, count: int) -> None:
        workers = EpisodeWorkers(source, min(count, self.concurrency), self.warn)
        await workers.start()
        self.workers = workers

    def _worker_task(self) -> EpisodePlay:
        return EpisodePlay(
            agent=self.agent,
            specs={each.name: spec for spec, each in self._endpoints.items()},
            limits=self.config.limits,
            system_prompt=self.config.system_prompt,
        )


def check_workers(
    count: int | None,
    agent: Agent,
    endpoints: Mapping[str, EnvironmentEndpoint],
    cluster: RayCluster | None = None,
) -> None:
    """Raise if workers or a cluster are asked for and cannot play these episodes."""
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
