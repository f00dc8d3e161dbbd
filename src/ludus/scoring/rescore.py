"""`rescore`: score the episodes of a run again, without playing them, into a new run folder."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path

from ludus.agents.agent import Agent
from ludus.client.event_loop import to_sync
from ludus.data.config import config_digest
from ludus.data.episode import Episode, EpisodeFault, StopReason, Usage
from ludus.data.episode_reader import read_resume_index
from ludus.data.files import Checksum
from ludus.data.interval_estimates import MeanEstimate, TaskRewards, is_zero_variance
from ludus.data.journal import Journal
from ludus.data.json_files import int_field, object_field
from ludus.data.run_folder import RunFolder, find_unused_dir
from ludus.data.tool_schema import JsonObject
from ludus.errors import ConfigError, LudusError
from ludus.rollout.episode_run import EpisodeRun
from ludus.rollout.progress import Notice, ProgressCallback, ignore_progress
from ludus.rollout.stats import RunBudget, RunStats
from ludus.scoring.config import JUDGE, RescoreConfig
from ludus.scoring.judge import BudgetExhausted, Judgement, JudgeStats
from ludus.scoring.reward_functions import RewardFunction, RewardFunctions
from ludus.scoring.source_run import SourceRun, index_episodes

RUN_KIND = "rescore"
JUDGEMENTS_FILE = "judgements.jsonl"


@dataclass(frozen=True, slots=True)
class RescoreResult:
    """The result of one start of a run."""

    folder: Path
    summary: JsonObject
    """The content of `summary.json`: episodes, rewards, what the judge has used."""
    new_episodes: int
    """Episodes that this start has recorded."""
    stop_reason: str | None
    """Why the run ended before all episodes were scored, if it did."""
    comparison: Comparison


@dataclass(frozen=True, slots=True)
class Comparison:
    """The rewards of the same episodes before and after, each a mean over tasks."""

    episodes: int
    before: MeanEstimate | None
    after: MeanEstimate | None
    changed: int
    """Episodes whose reward differs, also if only one of them is scored."""

    def as_json(self) -> JsonObject:
        return asdict(self)


async def rescore(
    run: str | Path,
    out: str | Path | None,
    config: RescoreConfig,
    *,
    progress: ProgressCallback = ignore_progress,
) -> RescoreResult:
    """Score the episodes of a run that the new folder does not have yet.

    Args:
        run: the run folder, or the folder of a GRPO training. Nothing of it is changed.
        out: the new run folder. By default it is beside `run` and named after it and the settings,
            so that the same call continues the same run.
        config: the new rewards.
        progress: called with each event, such as `ludus.progress()`.
    """
    if not config.rewards and config.judge is None:
        raise ConfigError("Nothing to score with: give `rewards` or a `judge`.")
    source = SourceRun.open(Path(run))
    functions = config.load_functions()
    settings = {
        **source.settings,
        "rescored": {"run": source.digest, **config.identity(functions)},
    }
    path = default_rescore_dir(source, settings) if out is None else Path(out)
    if path.resolve() == source.path.resolve():
        raise ConfigError(f"`out` is the run itself, {path}. Use another `out`.")
    pending = source.find_pending(path / "episodes.jsonl", retry_broken=config.retry_broken)
    if config.judge is not None and (pending or not config.resume):
        config.judge.agent.check()
        await config.judge.agent.prepare()
    with ExitStack() as stack:
        folder = (
            RunFolder.resume_or_create(path, settings, kind=RUN_KIND)
            if config.resume
            else RunFolder.create(find_unused_dir(path), settings, kind=RUN_KIND)
        )
        journal = stack.enter_context(Journal.open(folder.episodes_path))
        judgements = None
        if config.judge is not None:
            judgements = stack.enter_context(Journal.open(folder.path / JUDGEMENTS_FILE))
        for file in (journal, judgements):
            if file is not None and file.repair_note:
                progress(Notice(file.repair_note))
        rescorer = Rescorer(config, functions, source, folder, progress, judgements)
        await rescorer.run(journal)
    comparison = compare_rewards(source, folder)
    summary = {**rescorer.summary(), "comparison": comparison.as_json()}
    folder.write_summary(summary)
    return RescoreResult(
        folder=folder.path,
        summary=summary,
        new_episodes=rescorer.stats.new_episodes,
        stop_reason=rescorer.stop_reason,
        comparison=comparison,
    )


rescore_sync = to_sync(rescore)
"""`rescore` for callers that do not await; also works in a notebook."""


def default_rescore_dir(source: SourceRun, settings: JsonObject) -> Path:
    """The folder beside the source; the same settings always give the same one."""
    path = source.path if source.path.name not in ("", "..") else source.path.resolve()
    return path.with_name(f"{path.name}-rescored-{config_digest(settings)}")


def compare_rewards(source: SourceRun, folder: RunFolder) -> Comparison:
    """Compare the new rewards of the recorded episodes with the old ones."""
    lines = index_episodes(folder.episodes_path)
    before, after, changed = TaskRewards(), TaskRewards(), 0
    for episode_id, line in lines.items():
        if (source_line := source.lines.get(episode_id)) is None:
            continue
        old, new = source_line.reward, line.reward
        if old is not None:
            before.add(line.group_id, old)
        if new is not None:
            after.add(line.group_id, new)
        if old is None or new is None:
            changed += old is not new
        else:
            changed += not is_zero_variance([old, new])
    return Comparison(
        episodes=len(lines),
        before=before.estimate(),
        after=after.estimate(),
        changed=changed,
    )


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
        judgements: Journal | None = None,
    ) -> None:
        """`judgements` is the file for the judge's replies."""
        self._pending = source.find_pending(folder.episodes_path, retry_broken=config.retry_broken)
        earlier_summary = folder.read_summary()
        checksum = Checksum.from_summary(earlier_summary)
        stats = RunStats(
            planned=len(source.lines),
            remaining=len(self._pending),
            index=read_resume_index(folder.episodes_path, checksum=checksum),
        )
        super().__init__(folder, stats, RunBudget(max_time=config.max_time), progress)
        self.config, self.concurrency = config, config.concurrency
        self.judge = config.judge
        self.agent: Agent | None = None if config.judge is None else config.judge.agent
        self._source = source
        self._judgements: dict[str, Judgement] = {}
        """Judgements of the units in progress, by episode id."""
        self._functions = functions
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
        self._judgement_log = judgements
        if self.judge is not None:
            # What earlier starts of the run have spent on the judge.
            spent = object_field(earlier_summary, JUDGE)
            calls, failed = (int_field(spent, name) or 0 for name in ("calls", "failed"))
            usage = Usage.model_validate(object_field(spent, "usage"))
            self.judge.resume(JudgeStats(calls, failed, usage))

    @property
    def max_active(self) -> float:
        if self.judge is None:
            return self.concurrency
        limit = self.judge.agent.concurrency_limit
        concurrency = self.concurrency if limit is None else limit
        return min(concurrency, self.judge.max_active)

    def summary(self) -> JsonObject:
        judge = {JUDGE: self.judge.stats.as_json()} if self.judge is not None else {}
        return {**super().summary(), **judge}

    def items(self) -> Iterable[Sequence[str]]:
        """Episode ids that are scored together."""
        if self.judge is None or not self.judge.groups:
            return (
                [episode_id] for episode_id in self._source.lines if episode_id in self._pending
            )
        by_task: defaultdict[str, list[str]] = defaultdict(list)
        for episode_id, line in self._source.lines.items():
            by_task[line.group_id].append(episode_id)
        groups = list(by_task.values())
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
            played = [episode for episode in episodes if not episode.broken]
            if self.judge is not None and played:
                for episode, judgement in zip(played, await self.judge.judge(played), strict=True):
                    self._judgements[episode.episode_id] = judgement
                    if self._judgement_log is not None:
                        fields = {"episode_id": episode.episode_id, **asdict(judgement)}
                        self._judgement_log.append(json.dumps(fields).encode() + b"\n")
            for episode in episodes:
                if episode.episode_id not in self._pending:
                    continue
                scored = await self._score(episode)
                if episode.broken:
                    self.write(scored)
                else:
                    self.record(scored, self._active_ids)
        except BudgetExhausted as exhausted:
            self.drain(str(exhausted))
        except LudusError as error:  # A reward function failed, or a file cannot be used.
            self.fail(error, "scoring failed")
        finally:
            self._active_ids.difference_update(item)
            for episode_id in item:
                self._judgements.pop(episode_id, None)
                self.end(episode_id)

    async def _score(self, episode: Episode) -> Episode:
        """Score an episode; a failure of the judge makes it a broken one."""
        judgement = self._judgements.get(episode.episode_id)
        if judgement is None or judgement.error is None:
            return await self._functions.score(episode)
        fault = EpisodeFault(kind=judgement.error, where="model", message=judgement.reason)
        update = {"reward": None, "stop_reason": StopReason.BROKEN, "error": fault}
        return episode.model_copy(update=update)

    def write(self, episode: Episode) -> None:
        super().write(episode)
        self._pending.discard(episode.episode_id)
