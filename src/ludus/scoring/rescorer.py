"""Schedules the scoring of stored episodes: concurrency, budget, circuit breaker and recording."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Sequence
from contextlib import suppress

from ludus.data.checksum import Checksum
from ludus.data.episode import Episode, Fault, StopReason, Usage
from ludus.data.journal import Journal
from ludus.data.jsonable import int_field, object_field
from ludus.data.resume_index import read_resume_index
from ludus.data.run_folder import RunFolder
from ludus.data.tool_schema import JsonObject
from ludus.errors import LudusError, RunError, StoppedEarly
from ludus.rollout.budget import Budget
from ludus.rollout.circuit_breaker import CircuitBreaker
from ludus.rollout.stats import RunStats
from ludus.rollout.summary import describe_journal
from ludus.scoring.config import JUDGE, RescoreConfig
from ludus.scoring.judge import BudgetExhausted, Judgement, JudgeStats
from ludus.scoring.progress import RescoreProgress
from ludus.scoring.reward_functions import RewardFunction, RewardFunctions
from ludus.scoring.source import Source

JUDGEMENTS_FILE = "judgements.jsonl"
TICK_INTERVAL_S = 0.25
SUMMARY_INTERVAL_S = 10.0


class Rescorer:
    """One start of one run: scores what its journal does not have yet, and appends it.

    The unit of work is one episode, or one group of attempts where the judge ranks groups.
    """

    def __init__(
        self,
        config: RescoreConfig,
        functions: RewardFunctions,
        source: Source,
        folder: RunFolder,
        progress: RescoreProgress,
    ) -> None:
        self.config = config
        self.judge = config.judge
        self.folder = folder
        self.stop_reason: str | None = None
        """Why the run ends before all episodes are scored, if it does."""
        self._source = source
        self._progress = progress
        self._judgements: dict[str, Judgement] = {}
        """Of the units in progress, by episode id."""
        self._functions = functions
        if self.judge is not None:
            judge = RewardFunction(JUDGE, config.judge_weight, self._judge_score)
            self._functions = RewardFunctions(
                (*functions.functions, judge), functions.environment_weight
            )
        self._pending = source.find_pending(folder.episodes_path, retry_broken=config.retry_broken)
        self.stats = RunStats(
            planned=len(source.lines),
            remaining=len(self._pending),
            index=read_resume_index(folder.episodes_path, checksum=self._known_checksum()),
        )
        self._budget = Budget(max_time=config.max_time)
        self._breaker = CircuitBreaker(has_succeeded=self.stats.totals.scored > 0, action="judged")
        self._tasks: set[asyncio.Task[None]] = set()
        self._active_ids: set[str] = set()
        self._slot_freed = asyncio.Event()
        self._error: LudusError | None = None
        if self.judge is not None:
            self.judge.resume(self._read_judge_stats())

    def drain(self, reason: str) -> None:
        """Start no further episode; let the active ones finish."""
        self.stop_reason = self.stop_reason or reason
        self._slot_freed.set()

    def abort(self, reason: str) -> None:
        """Cancel the active episodes; they are scored when the run is continued."""
        self.drain(reason)
        for task in self._tasks:
            task.cancel()

    async def run(self, journal: Journal, judgements: Journal | None) -> None:
        """Score all pending episodes. Raises `StoppedEarly` when the judge fails on every one."""
        self._journal, self._judgement_log = journal, judgements
        self.write_summary()
        self._progress.begin(self)
        ticker = asyncio.create_task(self._tick())
        try:
            await self._score_all(self._units())
        finally:
            ticker.cancel()
            if self.stop_reason is None:
                for episode in self._breaker.finish():
                    self._write(episode)
            if self.stats.remaining == 0:
                self.stop_reason = None
            self.write_summary()
        if self._error is not None:
            raise self._error
        if self._breaker.reason is not None:
            raise StoppedEarly(
                f"The judge failed: {self._breaker.reason.rstrip('.')}. "
                f"{self.stats.totals.episodes:,} of {self.stats.planned:,} episodes are recorded "
                f"in {self.folder.path}; the same command scores the rest."
            )

    def summary(self) -> JsonObject:
        """The content of `summary.json`, with the length and the checksum of the journal."""
        judge = {JUDGE: self.judge.stats.as_json()} if self.judge is not None else {}
        return {
            **self.stats.summary(),
            "seconds": round(self.stats.seconds, 3),
            "stopped": self.stop_reason,
            **judge,
            **describe_journal(self.stats.index, self.folder.episodes_path.stat().st_size),
        }

    def write_summary(self) -> None:
        """Write `summary.json`. A failure is a warning: it can be computed from the journal."""
        try:
            self.folder.write_summary(self.summary())
        except RunError as error:
            self._progress.warn(str(error))

    def _units(self) -> Iterable[Sequence[str]]:
        """Episode ids that are scored together."""
        if self.judge is None or not self.judge.groups:
            return (
                [episode_id] for episode_id in self._source.lines if episode_id in self._pending
            )
        groups = self._source.group_by_task()
        if all(len(ids) == 1 for ids in groups):
            self._progress.warn(
                "No task has more than one attempt, so that there is nothing to compare: "
                "each is judged alone."
            )
        return (ids for ids in groups if not self._pending.isdisjoint(ids))

    async def _score_all(self, units: Iterable[Sequence[str]]) -> None:
        async with asyncio.TaskGroup() as group:
            for ids in units:
                if not await self._wait_for_slot():
                    break
                task = group.create_task(self._score_unit(ids))
                self._tasks.add(task)
                self.stats.active += 1
                task.add_done_callback(self._on_task_done)

    def _on_task_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self.stats.active -= 1
        self._slot_freed.set()

    async def _wait_for_slot(self) -> bool:
        """Wait until another unit may start; False when none should."""
        while self.stop_reason is None:
            if (exhausted := self._budget.exhausted_reason(self.stats)) is not None:
                self.drain(exhausted)
            elif self.stats.active < self._max_active():
                return True
            else:
                # Polled as well, because the agent's concurrency limit can rise without an event.
                self._slot_freed.clear()
                with suppress(TimeoutError):
                    async with asyncio.timeout(TICK_INTERVAL_S):
                        await self._slot_freed.wait()
        return False

    def _max_active(self) -> float:
        if self.judge is None:
            return self.config.concurrency
        limit = self.judge.agent.concurrency_limit
        concurrency = self.config.concurrency if limit is None else limit
        return min(concurrency, self.judge.max_active)

    async def _score_unit(self, ids: Sequence[str]) -> None:
        self._active_ids.update(ids)
        try:
            episodes = self._source.read(ids)
            if self.judge is not None:
                await self._judge_unit([episode for episode in episodes if not episode.broken])
            for episode in episodes:
                if episode.episode_id in self._pending:
                    await self._record(episode)
        except BudgetExhausted as exhausted:
            self.drain(str(exhausted))
        except LudusError as error:  # A reward function failed, or a file cannot be used.
            self._error = error
            self.abort("scoring failed")
        finally:
            self._active_ids.difference_update(ids)
            for episode_id in ids:
                self._judgements.pop(episode_id, None)
                self._breaker.record_end(episode_id)
        if self._breaker.reason is not None:
            self.abort("the judge fails on every episode")

    async def _judge_unit(self, episodes: Sequence[Episode]) -> None:
        if not episodes or self.judge is None:
            return
        for episode, judgement in zip(episodes, await self.judge.judge(episodes), strict=True):
            self._judgements[episode.episode_id] = judgement
            if self._judgement_log is not None:
                fields = {
                    "episode_id": episode.episode_id,
                    "score": judgement.score,
                    "reason": judgement.reason,
                    "error": judgement.error,
                    "cached": judgement.cached,
                }
                self._judgement_log.append(json.dumps(fields).encode() + b"\n")

    def _judge_score(self, episode: Episode) -> float | None:
        return self._judgements[episode.episode_id].score

    async def _record(self, episode: Episode) -> None:
        """Score an episode and write it; a failure of the judge makes it a broken one."""
        judgement = self._judgements.get(episode.episode_id)
        if judgement is not None and judgement.error is not None:
            fault = Fault(kind=judgement.error, where="model", message=judgement.reason)
            update = {"reward": None, "stop_reason": StopReason.BROKEN, "error": fault}
            self._breaker.record_fault(episode.model_copy(update=update), self._active_ids)
            return
        scored = await self._functions.score(episode)
        if not episode.broken:
            for held_back in self._breaker.record_success():
                self._write(held_back)
        self._write(scored)

    def _write(self, episode: Episode) -> None:
        line = episode.to_line()
        self._journal.append(line)
        self._pending.discard(episode.episode_id)
        self.stats.add(episode, line)
        self._progress.advance(1)

    def _known_checksum(self) -> Checksum | None:
        with suppress(RunError):
            return Checksum.from_summary(self.folder.read_summary() or {})
        return None

    def _read_judge_stats(self) -> JudgeStats:
        """What earlier starts of the run have spent on the judge."""
        stored: JsonObject = {}
        with suppress(RunError):
            stored = object_field(self.folder.read_summary() or {}, JUDGE)
        usage = object_field(stored, "usage")
        return JudgeStats(
            calls=int_field(stored, "calls") or 0,
            cached=int_field(stored, "cached") or 0,
            failed=int_field(stored, "failed") or 0,
            usage=Usage.model_validate(usage),
        )

    async def _tick(self) -> None:
        """Write the summary now and then."""
        while True:
            await asyncio.sleep(SUMMARY_INTERVAL_S)
            await asyncio.to_thread(self.write_summary)
