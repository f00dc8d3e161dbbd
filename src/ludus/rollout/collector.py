"""Schedules the episodes of a run: concurrency, budget, circuit breaker and recording."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping

from ludus.agents.agent import Agent
from ludus.data.episode import Episode, Usage
from ludus.data.journal import Journal
from ludus.data.resume_index import ResumeIndex
from ludus.data.run_folder import RunFolder
from ludus.errors import RunError, StoppedEarly
from ludus.rollout.attempts import EpisodeRunner
from ludus.rollout.circuit_breaker import CircuitBreaker
from ludus.rollout.collect_progress import CollectProgress
from ludus.rollout.config import CollectConfig
from ludus.rollout.endpoints import EnvironmentEndpoint
from ludus.rollout.episode_scheduler import SUMMARY_INTERVAL_S, TICK_INTERVAL_S, EpisodeScheduler
from ludus.rollout.monitoring import EpisodeStatus, Watchdog
from ludus.rollout.phase_progress import DecodeProgress
from ludus.rollout.plan import Plan
from ludus.rollout.ray_cluster import RayCluster
from ludus.rollout.session_pool import SessionPool
from ludus.rollout.stats import RunStats
from ludus.rollout.worker_launcher import WorkerLauncher

MAX_QUEUED_EPISODES = 32
"""Episodes beyond the agent's concurrency limit that are kept ready for the next free call."""
TIME_LIMIT_GRACE_S = 30.0
"""Seconds that active episodes get to end after the time limit, before they are cancelled."""


class Collector(EpisodeScheduler):
    """One start of one run: plays what is pending in `index` and appends it to the journal."""

    def __init__(
        self,
        config: CollectConfig,
        agent: Agent,
        folder: RunFolder,
        plan: Plan,
        endpoints: Mapping[str, EnvironmentEndpoint],
        index: ResumeIndex,
        progress: CollectProgress,
        *,
        cluster: RayCluster | None = None,
    ) -> None:
        stats = RunStats.from_index(index, config.total_episodes, retry_broken=config.retry_broken)
        super().__init__(folder, stats, progress.warn)
        self.config = config
        self.agent = agent
        self.meter = DecodeProgress(lambda: agent.sampled_tokens)
        self.statuses: dict[str, EpisodeStatus] = {}
        self._plan = plan
        self._pending = index.pending_indices(
            config.total_episodes, retry_broken=config.retry_broken
        )
        self._budget = config.budget
        self._progress = progress
        self._pools = {
            spec: SessionPool(each.endpoint, reconnect_timeout=config.reconnect_timeout)
            for spec, each in endpoints.items()
        }
        self._breaker = CircuitBreaker(has_succeeded=self.stats.totals.rewards.n > 0)
        self._not_started = 0
        """Episodes whose task was created and has not run yet."""
        self._stopping = asyncio.Event()
        self._runner = EpisodeRunner(
            agent=agent,
            limits=config.limits,
            system_prompt=config.system_prompt,
            max_attempts=config.max_attempts,
            retry_delay=config.retry_delay,
            statuses=self.statuses,
            on_attempt=self.stats.record_attempt,
            stopping=self._stopping,
        )
        self._launcher = WorkerLauncher(
            config.workers,
            self._runner,
            endpoints,
            self.stats,
            progress.warn,
            max_workers=config.concurrency,
            cluster=cluster,
        )
        self._write_error: RunError | None = None

    @property
    def seconds_left(self) -> float | None:
        """An estimate: from the tokens of a local model, else from the episodes that have ended."""
        stats = self.stats
        if self.meter.tokens is None:
            return stats.seconds_left
        return self.meter.seconds_left(
            self.config.limits,
            waiting=max(0, stats.remaining - stats.active),
            active=stats.active,
            finished=stats.new_episodes,
            finished_tokens=stats.usage_now.completion_tokens,
        )

    @property
    def unreachable_server(self) -> str | None:
        """A server that cannot be reached at the moment, if there is one."""
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
        active = (
            self.config.concurrency if limit is None else limit + min(limit, MAX_QUEUED_EPISODES)
        )
        if self._runner.workers is not None:
            # They are fewer than the concurrency limit; what is more than that waits for them.
            active = self._runner.workers.capacity
        return min(active, self._budget.max_active(self.stats))

    def exhausted_reason(self) -> str | None:
        active_usage: list[Usage] = []
        if self._budget.limits_spending:
            active_usage += (status.usage for status in self.statuses.values())
            active_usage += [Usage()] * self._not_started
        return self._budget.exhausted_reason(self.stats, active_usage)

    def drain(self, reason: str, *, requested: bool = False) -> None:
        super().drain(reason, requested=requested)
        self._stopping.set()

    async def run(self, journal: Journal) -> None:
        """Play all pending episodes. Raises `StoppedEarly` when every episode breaks."""
        self._journal = journal
        self.write_summary()
        self._progress.begin(self)
        watchdog = Watchdog(
            self.statuses,
            self._progress.warn,
            timeout=self.config.stall_warning,
            model_excused=lambda: self.agent.stall_expected,
        )
        with watchdog:
            ticker = asyncio.create_task(self._tick(watchdog))
            try:
                await self._launcher.start()
                await self.run_tasks(self._pending, self._start_episode)
            finally:
                ticker.cancel()
                await self._finish()
        if self._write_error is not None:
            raise self._write_error
        if self._breaker.reason is not None:
            raise StoppedEarly(
                f"{self._breaker.reason.rstrip('.')}. {self.stats.totals.episodes:,} of "
                f"{self.stats.planned:,} episodes are recorded in {self.folder.path}; "
                "the same command plays the rest."
            )

    def _start_episode(self, index: int) -> Coroutine[None, None, None]:
        self._not_started += 1
        return self._run_episode(index)

    async def _run_episode(self, index: int) -> None:
        self._not_started -= 1
        assignment = self._plan[index]
        episode = await self._runner.run(assignment, self._pools[self._plan.spec_of(index)])
        if episode is not None and episode.broken:
            self._breaker.record_fault(episode, self.statuses)
        elif episode is not None:
            for held_back in self._breaker.record_success():
                self._write(held_back)
            self._write(episode)
        self._breaker.record_end(assignment.episode_id)
        if self._breaker.reason is not None:
            self.abort("every episode breaks")

    def _write(self, episode: Episode) -> None:
        line = episode.to_line()
        try:
            self._journal.append(line)
        except RunError as error:
            self._write_error = error
            self.abort("the journal cannot be written")
            return
        self.stats.add(episode, line)

    async def _finish(self) -> None:
        """Record the episodes that are still held back, and close all sessions."""
        if self.stop_reason is None:
            for held_back in self._breaker.finish():
                self._write(held_back)
        await self._launcher.close()
        await asyncio.gather(*(pool.close() for pool in self._pools.values()))
        self.write_final_summary()

    async def _tick(self, watchdog: Watchdog) -> None:
        """Feed the watchdog, write the summary now and then, and enforce the time limit.

        Also starts workers, where the run turns out to be long enough.
        """
        ticks = 0
        while True:
            await asyncio.sleep(TICK_INTERVAL_S)
            watchdog.heartbeat()
            self._launcher.start_if_worthwhile()
            ticks += 1
            if ticks % round(SUMMARY_INTERVAL_S / TICK_INTERVAL_S) == 0:
                await asyncio.to_thread(self.write_summary)
            limit = self._budget.max_time
            if (
                limit is not None
                and self.stats.seconds > limit + TIME_LIMIT_GRACE_S
                and self._tasks
            ):
                self.abort(f"the time limit of {limit:g} s is used up")
