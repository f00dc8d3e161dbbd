"""The base of runs over many episodes: concurrent tasks, stopping early, and the summary."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Iterable
from contextlib import suppress
from typing import TypeVar

from ludus.data.run_folder import RunFolder
from ludus.data.tool_schema import JsonObject
from ludus.errors import RunError
from ludus.rollout.stats import RunStats
from ludus.rollout.summary import describe_journal

TICK_INTERVAL_S = 0.25
SUMMARY_INTERVAL_S = 10.0

ItemT = TypeVar("ItemT")


class EpisodeScheduler(ABC):
    """One start of one run: works on as many episodes at once as the limits allow."""

    def __init__(self, folder: RunFolder, stats: RunStats, warn: Callable[[str], None]) -> None:
        self.folder = folder
        self.stats = stats
        self.stop_reason: str | None = None
        """Why the run ends before all episodes are done, or who asked it to end."""
        self._stop_requested = False
        self._warn = warn
        self._tasks: set[asyncio.Task[None]] = set()
        self._slot_freed = asyncio.Event()

    @property
    @abstractmethod
    def max_active(self) -> float:
        """Maximum number of tasks in progress at the moment."""

    @abstractmethod
    def exhausted_reason(self) -> str | None:
        """Why the budget allows no further task, or None."""

    def drain(self, reason: str, *, requested: bool = False) -> None:
        """Start no further episode; let the active ones finish.

        `requested`: by a signal, after which nothing else should start, even if all are done.
        """
        self.stop_reason = self.stop_reason or reason
        self._stop_requested = self._stop_requested or requested
        self._slot_freed.set()

    def abort(self, reason: str, *, requested: bool = False) -> None:
        """Cancel the active episodes; they are done again when the run is continued."""
        self.drain(reason, requested=requested)
        for task in self._tasks:
            task.cancel()

    def summary(self) -> JsonObject:
        """The content of `summary.json`, with the length and the checksum of the journal."""
        return {
            **self.stats.summary(),
            "seconds": round(self.stats.seconds, 3),
            "stopped": self.stop_reason if self.stats.remaining else None,
            **self.summary_details(),
            **describe_journal(self.stats.index, self.folder.episodes_path.stat().st_size),
        }

    def summary_details(self) -> JsonObject:
        """Further fields of the summary."""
        return {}

    def write_summary(self) -> None:
        """Write `summary.json`. A failure is a warning: it can be computed from the journal."""
        try:
            self.folder.write_summary(self.summary())
        except (RunError, OSError) as error:
            self._warn(str(error))

    def write_final_summary(self) -> None:
        """Write the summary at the end; a run that is complete was not stopped by a limit."""
        if self.stats.remaining == 0 and not self._stop_requested:
            self.stop_reason = None
        self.write_summary()

    async def run_tasks(
        self, items: Iterable[ItemT], work: Callable[[ItemT], Coroutine[None, None, None]]
    ) -> None:
        """Run `work` on the items, each in a task, until all have ended or the run is stopped."""
        async with asyncio.TaskGroup() as group:
            for item in items:
                if not await self._wait_for_slot():
                    break
                task = group.create_task(work(item))
                self._tasks.add(task)
                self.stats.active += 1
                task.add_done_callback(self._on_task_done)

    def _on_task_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self.stats.active -= 1
        self._slot_freed.set()

    async def _wait_for_slot(self) -> bool:
        """Wait until another task may start; False when none should."""
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
