"""The base of runs over many episodes: concurrent tasks, recording, stopping early, the summary."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Collection, Coroutine, Iterable
from contextlib import suppress
from typing import Any, ClassVar

from ludus.agents.agent import Agent
from ludus.data.episode import Episode
from ludus.data.journal import Journal
from ludus.data.run_folder import RunFolder
from ludus.data.tool_schema import JsonObject
from ludus.errors import LudusError, RunError, StoppedEarly
from ludus.rollout.circuit_breaker import CircuitBreaker
from ludus.rollout.progress import EpisodeRecorded, Notice, ProgressCallback, RunEnded, RunStarted
from ludus.rollout.stats import RunBudget, RunStats, describe_journal

TICK_INTERVAL_S = 0.25
SUMMARY_INTERVAL_S = 10.0
TIME_LIMIT_GRACE_S = 30.0
"""Seconds that active episodes get to end after the time limit, before they are cancelled."""


class EpisodeRun(ABC):
    """One start of one run: works on as many episodes at once as the limits allow."""

    verbs: ClassVar[tuple[str, str]] = ("plays", "played")
    """What is done with episodes, for errors."""
    failure_prefix: ClassVar[str] = ""
    """Prefix of the error of a run in which every episode breaks."""
    agent: Agent | None
    """Makes the calls to a model; None if a run needs none."""
    concurrency: int
    """Maximum number of concurrent episodes, by the config."""

    def __init__(
        self, folder: RunFolder, stats: RunStats, budget: RunBudget, progress: ProgressCallback
    ) -> None:
        self.folder, self.stats, self.budget, self.progress = folder, stats, budget, progress
        self.stop_reason: str | None = None
        """Why the run ends early, or the signal that requested it."""
        self.stopping = asyncio.Event()
        """Set once `stop_reason` is."""
        self.breaker = CircuitBreaker(
            has_succeeded=stats.totals.rewards.n > 0, action=self.verbs[1]
        )
        self._journal: Journal
        self._error: LudusError | None = None
        self._stop_requested = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._slot_freed = asyncio.Event()

    @property
    @abstractmethod
    def max_active(self) -> float:
        """Maximum number of tasks in progress at the moment."""

    @abstractmethod
    def items(self) -> Iterable[Any]:
        """What is still to be done, one item per task."""

    @abstractmethod
    def work(self, item: Any) -> Coroutine[None, None, None]:
        """The task of an item; called when it is created."""

    async def open(self) -> None:  # noqa: B027
        """Start what the tasks need."""

    async def close(self) -> None:  # noqa: B027
        """End what the tasks needed."""

    def on_tick(self) -> None:  # noqa: B027
        """Called every `TICK_INTERVAL_S`."""

    def exhausted_reason(self) -> str | None:
        """Why the budget allows no further task, or None."""
        return self.budget.exhausted_reason(self.stats)

    def warn(self, message: str) -> None:
        """Tell the user. May be called from another thread."""
        self.progress(Notice(message))

    def drain(self, reason: str, *, requested: bool = False) -> None:
        """Start no further episode; let the active ones finish.

        `requested`: by a signal, after which nothing else should start, even if all are done.
        """
        self.stop_reason = self.stop_reason or reason
        self._stop_requested = self._stop_requested or requested
        self.stopping.set()
        self._slot_freed.set()

    def abort(self, reason: str, *, requested: bool = False) -> None:
        """Cancel the active episodes; they are done again when the run is continued."""
        self.drain(reason, requested=requested)
        for task in self._tasks:
            task.cancel()

    def fail(self, error: LudusError, reason: str) -> None:
        """Abort, and raise an error at the end."""
        self._error = error
        self.abort(reason)

    async def run(self, journal: Journal) -> None:
        """Do all pending episodes. Raises `StoppedEarly` if every episode breaks."""
        self._journal = journal
        self.write_summary()
        self.progress(RunStarted(self))
        ticker = asyncio.create_task(self._tick())

        def on_done(task: asyncio.Task[None]) -> None:
            self._tasks.discard(task)
            self.stats.active -= 1
            self._slot_freed.set()

        try:
            await self.open()
            async with asyncio.TaskGroup() as group:
                for item in self.items():
                    if not await self._wait_for_slot():
                        break
                    task = group.create_task(self.work(item))
                    self._tasks.add(task)
                    self.stats.active += 1
                    task.add_done_callback(on_done)
        finally:
            ticker.cancel()
            if self.stop_reason is None:
                for held_back in self.breaker.finish():
                    self.write(held_back)
            await self.close()
            if self.stats.remaining == 0 and not self._stop_requested:
                self.stop_reason = None  # A run that is complete was not stopped by a limit.
            self.write_summary()
            self.progress(RunEnded(self))
        if self._error is not None:
            raise self._error
        if self.breaker.reason is not None:
            raise StoppedEarly(
                f"{self.failure_prefix}{self.breaker.reason.rstrip('.')}. "
                f"{self.stats.totals.episodes:,} of {self.stats.planned:,} episodes are recorded "
                f"in {self.folder.path}; the same command {self.verbs[0]} the rest."
            )

    async def _wait_for_slot(self) -> bool:
        """Wait until another task may start; False if none should."""
        while self.stop_reason is None:
            if (reason := self.exhausted_reason()) is not None:
                self.drain(reason)
                break
            if self.stats.active < self.max_active:
                return True
            # Polled as well, because the agent's concurrency limit can rise without an event.
            self._slot_freed.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(TICK_INTERVAL_S):
                    await self._slot_freed.wait()
        return False

    async def _tick(self) -> None:
        """Write the summary now and then, and enforce the time limit."""
        stats, limit = self.stats, self.budget.max_time
        summarized_at = stats.seconds
        while True:
            await asyncio.sleep(TICK_INTERVAL_S)
            self.on_tick()
            if stats.seconds - summarized_at >= SUMMARY_INTERVAL_S:
                summarized_at = stats.seconds
                await asyncio.to_thread(self.write_summary)
            if limit is not None and self._tasks and stats.seconds > limit + TIME_LIMIT_GRACE_S:
                self.abort(f"the time limit of {limit:g} s is used up")

    def record(self, episode: Episode, active_ids: Collection[str]) -> None:
        """Write an episode, or hold it back if it is broken, because all episodes may be."""
        if episode.broken:
            self.breaker.record_fault(episode, active_ids)
            return
        for held_back in self.breaker.record_success():
            self.write(held_back)
        self.write(episode)

    def write(self, episode: Episode) -> None:
        line = episode.to_line()
        try:
            self._journal.append(line)
        except RunError as error:
            self.fail(error, "the journal cannot be written")
        else:
            self.stats.add(episode, line)
            self.progress(EpisodeRecorded(episode))

    def end(self, episode_id: str) -> None:
        """Note that an episode is over, whatever its outcome."""
        self.breaker.record_end(episode_id)
        if self.breaker.reason is not None:
            self.abort("every episode breaks")

    def summary(self) -> JsonObject:
        """The content of `summary.json`, with the length and the checksum of the journal."""
        return {
            **self.stats.summary(),
            "seconds": round(self.stats.seconds, 3),
            "stopped": self.stop_reason if self.stats.remaining else None,
            **describe_journal(self.stats.index, self.folder.episodes_path.stat().st_size),
        }

    def write_summary(self) -> None:
        """Write `summary.json`. A failure is a warning: it can be computed from the journal."""
        try:
            self.folder.write_summary(self.summary())
        except (RunError, OSError) as error:
            self.warn(str(error))
