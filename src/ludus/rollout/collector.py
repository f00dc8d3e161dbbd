"""Plays many episodes at once, and loses none: schedule, retry, budget, resume.

How one episode is played is the loop's business; what is written and read back is the journal's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping

from ludus.agents.agent import Agent
from ludus.data.episode import Episode, Usage
from ludus.data.journal import Journal
from ludus.data.run_folder import RunFolder
from ludus.data.tool_schema import JsonObject
from ludus.errors import RunError, StoppedEarly
from ludus.rollout.attempts import EpisodeRunner, wait_for_event
from ludus.rollout.budget import Budget
from ludus.rollout.callbacks import CollectProgress
from ludus.rollout.circuit_breaker import CircuitBreaker
from ludus.rollout.config import CollectConfig
from ludus.rollout.endpoints import EnvironmentEndpoint
from ludus.rollout.episode_status import EpisodeStatus
from ludus.rollout.options import RolloutOptions
from ludus.rollout.plan import Plan
from ludus.rollout.progress import DecodeMeter, estimate_seconds_left
from ludus.rollout.session_pool import SessionPool
from ludus.rollout.stats import RunStats
from ludus.rollout.summary import describe_journal
from ludus.rollout.watchdog import Watchdog

TICK_INTERVAL_S = 0.25
SUMMARY_INTERVAL_S = 10.0
MAX_QUEUED_EPISODES = 32
"""Episodes that may wait for their turn to call the model."""
TIME_LIMIT_GRACE_S = 30.0
"""Seconds that episodes under way still get when the time is used up."""


class Collector:
    """One start of one run."""

    def __init__(
        self,
        config: CollectConfig,
        agent: Agent,
        folder: RunFolder,
        plan: Plan,
        endpoints: Mapping[str, EnvironmentEndpoint],
        *,
        stats: RunStats,
        pending: Iterator[int],
        options: RolloutOptions,
        budget: Budget,
        progress: CollectProgress,
    ) -> None:
        self.config = config
        self.agent = agent
        self.folder = folder
        self.stats = stats
        self.options = options
        self.meter = DecodeMeter(lambda: agent.sampled_tokens)
        self.stop_reason: str | None = None
        """Why it ended before everything was played, if it did."""
        self.statuses: dict[str, EpisodeStatus] = {}
        self._plan = plan
        self._pending = pending
        self._budget = budget
        self._progress = progress
        self._pools = {
            spec: SessionPool(place.endpoint, reconnect_timeout=options.reconnect_timeout)
            for spec, place in endpoints.items()
        }
        self._breaker = CircuitBreaker(has_succeeded=stats.totals.scored > 0)
        self._tasks: set[asyncio.Task[None]] = set()
        self._not_started = 0
        """Episodes that were given a task, which has not run yet."""
        self._slot_freed = asyncio.Event()
        self._stopping = asyncio.Event()
        self._runner = EpisodeRunner(
            agent, config.limits, config.system_prompt, options, self.statuses, stats.record_attempt,
            self._stopping,
        )  # fmt: skip
        self._write_error: RunError | None = None

    @property
    def seconds_left(self) -> float | None:
        """An estimate: from the tokens of a local model, else from the episodes that have ended."""
        tally = self.stats
        if self.meter.tokens is None:
            return tally.seconds_left
        return estimate_seconds_left(
            self.meter, self.config.limits,
            waiting=max(0, tally.remaining - tally.active), active=tally.active,
            finished=tally.new_episodes, finished_tokens=tally.usage_now.completion_tokens,
        )  # fmt: skip

    @property
    def unreachable_server(self) -> str | None:
        """The server that nobody can reach just now, if there is one."""
        for pool in self._pools.values():
            if pool.unreachable_since is not None:
                return pool.endpoint.spec
        return None

    @property
    def max_active(self) -> int:
        """How many episodes may be under way just now.

        More than the model takes calls: some are always with their environment or waiting to try
        again, and a call that ends finds another one ready.
        """
        level = self.agent.concurrency_limit
        return (
            self.options.concurrency if level is None else level + min(level, MAX_QUEUED_EPISODES)
        )

    def drain(self, reason: str) -> None:
        """Begin no further episode; those under way are finished."""
        self.stop_reason = self.stop_reason or reason
        self._stopping.set()
        self._slot_freed.set()

    def abort(self, reason: str) -> None:
        """Stop at once; what is under way will be played again when the run goes on."""
        self.drain(reason)
        for task in self._tasks:
            task.cancel()

    async def run(self, journal: Journal) -> None:
        """Play all that is left to do. Raises `StoppedEarly` when nothing works any more."""
        self._journal = journal
        self.write_summary()
        self._progress.begin(self)
        dog = Watchdog(
            self.statuses,
            self._progress.warn,
            timeout=self.options.stall_warning,
            model_excused=lambda: self.agent.stall_expected,
        )
        with dog:
            ticking = asyncio.create_task(self._tick(dog))
            try:
                await self._play_all()
            finally:
                ticking.cancel()
                await self._finish()
        if self._write_error is not None:
            raise self._write_error
        if self._breaker.reason is not None:
            raise StoppedEarly(f"{self._breaker.reason.rstrip('.')}. {self._resume_hint()}")

    def _resume_hint(self) -> str:
        return (
            f"{self.stats.totals.episodes:,} of {self.stats.planned:,} episodes are recorded in "
            f"{self.folder.path}; the same command goes on with the rest."
        )

    async def _play_all(self) -> None:
        async with asyncio.TaskGroup() as group:
            for index in self._pending:
                if not await self._wait_for_slot():
                    break
                task = group.create_task(self._run_episode(index))
                self._tasks.add(task)
                self.stats.active += 1
                self._not_started += 1
                task.add_done_callback(self._on_task_done)

    def _on_task_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self.stats.active -= 1
        self._slot_freed.set()

    async def _wait_for_slot(self) -> bool:
        """Wait until another episode may begin; False when none should."""
        while self.stop_reason is None:
            spent = self._budget.exhausted_reason(self.stats, self._active_usage())
            if spent is not None:
                self.drain(spent)
                break
            if self.stats.active < min(self.max_active, self._budget.max_active(self.stats)):
                return True
            self._slot_freed.clear()
            await wait_for_event(self._slot_freed, TICK_INTERVAL_S)
        return False

    def _active_usage(self) -> list[Usage]:
        """What each episode under way has used; only budgets want to know."""
        if not self._budget.limits_spending:
            return []
        begun = [activity.usage for activity in self.statuses.values()]
        return begun + [Usage()] * self._not_started

    async def _run_episode(self, index: int) -> None:
        self._not_started -= 1
        assignment = self._plan[index]
        episode = await self._runner.run(assignment, self._pools[self._plan.spec_of(index)])
        if episode is not None:
            self._record(episode)
        self._breaker.record_end(assignment.episode_id)
        if self._breaker.reason is not None:
            self.abort("nothing works any more")

    def _record(self, episode: Episode) -> None:
        if not episode.broken:
            for held in self._breaker.record_success():
                self._write(held)
            self._write(episode)
            return
        self._breaker.record_fault(episode, self.statuses)

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
        """Write what is still held back, and give everything back."""
        if self.stop_reason is None:
            for held in self._breaker.finish():
                self._write(held)
        await asyncio.gather(*(pool.close() for pool in self._pools.values()))
        if self.stats.remaining == 0:
            self.stop_reason = None
        self.write_summary()

    def summary(self) -> JsonObject:
        """For `summary.json`, with the length and the checksum of the journal."""
        return {
            **self.stats.summary(),
            "seconds": round(self.stats.seconds, 3),
            "stopped": self.stop_reason,
            **describe_journal(self.stats.index, self.folder.episodes_path.stat().st_size),
        }

    def write_summary(self) -> None:
        """A summary that cannot be written costs no episode: `ludus runs` makes it again."""
        try:
            self.folder.write_summary(self.summary())
        except RunError as error:
            self._progress.warn(str(error))

    async def _tick(self, dog: Watchdog) -> None:
        """What has to happen now and then, whatever the episodes do."""
        beats = 0
        while True:
            await asyncio.sleep(TICK_INTERVAL_S)
            dog.heartbeat()
            beats += 1
            if beats % round(SUMMARY_INTERVAL_S / TICK_INTERVAL_S) == 0:
                await asyncio.to_thread(self.write_summary)
            limit = self._budget.max_time
            if (
                limit is not None
                and self.stats.seconds > limit + TIME_LIMIT_GRACE_S
                and self._tasks
            ):
                self.abort(f"--max-time {limit:g} s is used up")
