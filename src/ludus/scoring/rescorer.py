"""Scores the stored episodes of a run that a new run folder does not have yet."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from ludus.agents.agent import Agent
from ludus.data.episode import Episode, Fault, StopReason, Usage
from ludus.data.episode_reader import episode_from_line, read_resume_index
from ludus.data.files import Checksum
from ludus.data.journal import Journal
from ludus.data.json_files import int_field, object_field
from ludus.data.run_folder import RunFolder
from ludus.data.tool_schema import JsonObject
from ludus.errors import LudusError
from ludus.rollout.episode_run import EpisodeRun
from ludus.rollout.progress import ProgressCallback
from ludus.rollout.ray_cluster import RayCluster
from ludus.rollout.stats import Budget, RunStats
from ludus.rollout.workers import BlockWork, EpisodeWorkers
from ludus.scoring.config import JUDGE, RescoreConfig
from ludus.scoring.judge import BudgetExhausted, Judgement, JudgeStats
from ludus.scoring.reward_functions import RewardFunction, RewardFunctions
from ludus.scoring.source_run import SourceRun


@dataclass(frozen=True, slots=True)
class EpisodeScoring(BlockWork):
    """Scores episodes; an item is the line of an episode, and the judge's score."""

    functions: RewardFunctions
    judge_weight: float | None
    """None without a judge."""

    async def run(self, item: Any) -> bytes:
        line, judge_score = item
        functions = self.functions.functions
        if self.judge_weight is not None:
            judge = RewardFunction(JUDGE, self.judge_weight, lambda episode: judge_score)
            functions = (*functions, judge)
        rewards = RewardFunctions(functions, self.functions.environment_weight)
        return (await rewards.score(episode_from_line(line))).to_line()


JUDGEMENTS_FILE = "judgements.jsonl"


class Rescorer(EpisodeRun):
    """One start of one run: scores what its journal does not have yet, and appends it.

    The unit of work is one episode, or one group of attempts if the judge ranks groups.
    """

    verbs = ("scores", "judged")
    failure_prefix = "The judge failed: "

    def __init__(
        self,
        config: RescoreConfig,
        functions: RewardFunctions,
        source: SourceRun,
        folder: RunFolder,
        progress: ProgressCallback,
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
        super().__init__(folder, stats, Budget(max_time=config.max_time), progress)
        self.config, self.concurrency = config, config.concurrency
        self.judge = config.judge
        self.agent: Agent | None = None if config.judge is None else config.judge.agent
        self._source = source
        self._judgements: dict[str, Judgement] = {}
        """Of the units in progress, by episode id."""
        self._functions = self._user_functions = functions
        self._cluster = cluster
        if self.judge is not None:
            judge = RewardFunction(
                JUDGE,
                config.judge_weight,
                lambda episode: self._judgements[episode.episode_id].score,
            )
            self._functions = RewardFunctions(
                (*functions.functions, judge), functions.environment_weight
            )
        self._active_ids: set[str] = set()
        self._judgement_log: Journal | None = None
        if self.judge is not None:
            self.judge.resume(_parse_judge_stats(object_field(earlier_summary, JUDGE)))

    @property
    def max_active(self) -> float:
        if self.judge is None:
            return self.concurrency if self.workers is None else self.workers.capacity
        limit = self.judge.agent.concurrency_limit
        concurrency = self.concurrency if limit is None else limit
        return min(concurrency, self.judge.max_active)

    async def run(self, journal: Journal, judgements: Journal | None = None) -> None:
        """Score all pending episodes; `judgements` takes what the judge replies."""
        self._judgement_log = judgements
        await super().run(journal)

    async def open(self) -> None:
        if self._cluster is None or not self._pending:
            return
        from ludus.rollout.ray_cluster import RayWorkers

        judge_weight = self.config.judge_weight if self.judge is not None else None
        work = EpisodeScoring(functions=self._user_functions, judge_weight=judge_weight)
        source = RayWorkers(work)
        workers = EpisodeWorkers(source, self._cluster.num_cores, self.warn)
        await workers.start()
        self.workers = workers

    def summary(self) -> JsonObject:
        judge = {JUDGE: self.judge.stats.as_json()} if self.judge is not None else {}
        return {**super().summary(), **judge}

    def items(self) -> Iterable[Sequence[str]]:
        """Episode ids that are scored together."""
        if self.judge is None or not self.judge.groups:
            return (
                [episode_id] for episode_id in self._source.lines if episode_id in self._pending
            )
        groups = self._source.group_by_task()
        if all(len(ids) == 1 for ids in groups):
            self.warn(
                "No task has more than one attempt, so that there is nothing to compare: "
                "each is judged alone."
            )
        return (ids for ids in groups if not self._pending.isdisjoint(ids))

    async def work(self, item: Sequence[str]) -> None:
        self._active_ids.update(item)
        try:
            episodes = self._source.read(item)
            if self.judge is not None:
                await self._judge_unit([episode for episode in episodes if not episode.broken])
            for episode in episodes:
                if episode.episode_id in self._pending:
                    await self._record(episode)
        except BudgetExhausted as exhausted:
            self.drain(str(exhausted))
        except LudusError as error:  # A reward function failed, or a file cannot be used.
            self.fail(error, "scoring failed")
        finally:
            self._active_ids.difference_update(item)
            for episode_id in item:
                self._judgements.pop(episode_id, None)
                self.end(episode_id)

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

    async def _record(self, episode: Episode) -> None:
        """Score an episode and write it; a failure of the judge makes it a broken one."""
        judgement = self._judgements.get(episode.episode_id)
        if judgement is not None and judgement.error is not None:
            fault = Fault(kind=judgement.error, where="model", message=judgement.reason)
            update = {"reward": None, "stop_reason": StopReason.BROKEN, "error": fault}
            self.record(episode.model_copy(update=update), self._active_ids)
            return
        if self.workers is None:
            scored = await self._functions.score(episode)
        else:
            score = None if judgement is None else judgement.score
            scored = await self.workers.run((episode.to_line(), score))
        if episode.broken:
            self.write(scored)
        else:
            self.record(scored, self._active_ids)

    def write(self, episode: Episode) -> None:
        super().write(episode)
        self._pending.discard(episode.episode_id)


def _parse_judge_stats(fields: JsonObject) -> JudgeStats:
    """What earlier starts of the run have spent on the judge, from its summary."""
    return JudgeStats(
        calls=int_field(fields, "calls") or 0,
        cached=int_field(fields, "cached") or 0,
        failed=int_field(fields, "failed") or 0,
        usage=Usage.model_validate(object_field(fields, "usage")),
    )
