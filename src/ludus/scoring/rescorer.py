"""Schedules the scoring of stored episodes: concurrency, budget, circuit breaker and recording."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Sequence

from ludus.data.checksum import Checksum
from ludus.data.episode import Episode, Fault, StopReason, Usage
from ludus.data.journal import Journal
from ludus.data.jsonable import int_field, object_field
from ludus.data.resume_index import read_resume_index
from ludus.data.run_folder import RunFolder
from ludus.data.tool_schema import JsonObject
from ludus.errors import LudusError, StoppedEarly
from ludus.rollout.budget import Budget
from ludus.rollout.circuit_breaker import CircuitBreaker
from ludus.rollout.episode_scheduler import SUMMARY_INTERVAL_S, EpisodeScheduler
from ludus.rollout.episode_workers import EpisodeWorkers
from ludus.rollout.ray_cluster import RayCluster
from ludus.rollout.stats import RunStats
from ludus.scoring.config import JUDGE, RescoreConfig
from ludus.scoring.episode_scoring import EpisodeScoring
from ludus.scoring.judge import BudgetExhausted, Judgement, JudgeStats
from ludus.scoring.rescore_progress import RescoreProgress
from ludus.scoring.reward_functions import RewardFunction, RewardFunctions
from ludus.scoring.source_run import SourceRun

JUDGEMENTS_FILE = "judgements.jsonl"


class Rescorer(EpisodeScheduler):
    """One start of one run: scores what its journal does not have yet, and appends it.

    The unit of work is one episode, or one group of attempts where the judge ranks groups.
    """

    def __init__(
        self,
        config: RescoreConfig,
        functions: RewardFunctions,
        source: SourceRun,
        folder: RunFolder,
        progress: RescoreProgress,
        *,
        cluster: RayCluster | None = None,
    ) -> None:
        self._pending = source.find_pending(folder.episodes_path, retry_broken=config.retry_broken)
        earlier_summary = folder.read_summary()
        checksum = Checksum.from_summary(earlier_summary)
        stats = RunStats(
            planned=len(source.lines),
            remaining=len(self._pending),
            index=read_resume_index(folder.episodes_path, checksum=checksum),
        )
        super().__init__(folder, stats, progress.warn)
        self.config = config
        self.judge = config.judge
        self._source = source
        self._progress = progress
        self._judgements: dict[str, Judgement] = {}
        """Of the units in progress, by episode id."""
        self._functions = self._user_functions = functions
        self._cluster = cluster
        self._workers: EpisodeWorkers | None = None
        if self.judge is not None:
            judge = RewardFunction(JUDGE, config.judge_weight, self._judge_score)
            self._functions = RewardFunctions(
                (*functions.functions, judge), functions.environment_weight
            )
        self._budget = Budget(max_time=config.max_time)
        self._breaker = CircuitBreaker(
            has_succeeded=self.stats.totals.rewards.n > 0, action="judged"
        )
        self._active_ids: set[str] = set()
        self._error: LudusError | None = None
        if self.judge is not None:
            self.judge.resume(_parse_judge_stats(object_field(earlier_summary, JUDGE)))

    @property
    def max_active(self) -> float:
        if self.judge is None:
            return self.config.concurrency if self._workers is None else self._workers.capacity
        limit = self.judge.agent.concurrency_limit
        concurrency = self.config.concurrency if limit is None else limit
        return min(concurrency, self.judge.max_active)

    def exhausted_reason(self) -> str | None:
        return self._budget.exhausted_reason(self.stats)

    async def run(self, journal: Journal, judgements: Journal | None) -> None:
        """Score all pending episodes. Raises `StoppedEarly` when the judge fails on every one."""
        self._journal, self._judgement_log = journal, judgements
        self.write_summary()
        self._progress.begin(self)
        ticker = asyncio.create_task(self._tick())
        try:
            if self._cluster is not None and self._pending:
                self._workers = await self._start_workers(self._cluster)
            await self.run_tasks(self._units(), self._score_unit)
        finally:
            ticker.cancel()
            if self._workers is not None:
                await self._workers.close()
            if self.stop_reason is None:
                for episode in self._breaker.finish():
                    self._write(episode)
            self.write_final_summary()
        if self._error is not None:
            raise self._error
        if self._breaker.reason is not None:
            raise StoppedEarly(
                f"The judge failed: {self._breaker.reason.rstrip('.')}. "
                f"{self.stats.totals.episodes:,} of {self.stats.planned:,} episodes are recorded "
                f"in {self.folder.path}; the same command scores the rest."
            )

    async def _start_workers(self, cluster: RayCluster) -> EpisodeWorkers:
        from ludus.rollout.ray_worker import RayWorkers

        judge_weight = self.config.judge_weight if self.judge is not None else None
        work = EpisodeScoring(functions=self._user_functions, judge_weight=judge_weight)
        workers = EpisodeWorkers(RayWorkers(cluster, work), cluster.num_cores, self._progress.warn)
        await workers.start()
        return workers

    def summary_details(self) -> JsonObject:
        return {JUDGE: self.judge.stats.as_json()} if self.judge is not None else {}

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
        if self._workers is None:
            scored = await self._functions.score(episode)
        else:
            score = None if judgement is None else judgement.score
            scored = await self._workers.run((episode.to_line(), score))
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

    async def _tick(self) -> None:
        """Write the summary now and then."""
        while True:
            await asyncio.sleep(SUMMARY_INTERVAL_S)
            await asyncio.to_thread(self.write_summary)


def _parse_judge_stats(fields: JsonObject) -> JudgeStats:
    """What earlier starts of the run have spent on the judge, from its summary."""
    return JudgeStats(
        calls=int_field(fields, "calls") or 0,
        cached=int_field(fields, "cached") or 0,
        failed=int_field(fields, "failed") or 0,
        usage=Usage.model_validate(object_field(fields, "usage")),
    )
