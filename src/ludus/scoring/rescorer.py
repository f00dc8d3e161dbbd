"""Scores the stored episodes of a run that a new run folder does not have yet."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NamedTuple

from ludus.agents.agent import Agent
from ludus.data.config import config_digest
from ludus.data.episode import Episode, EpisodeFault, StopReason, Usage
from ludus.data.episode_reader import parse_head, read_resume_index
from ludus.data.files import Checksum
from ludus.data.journal import Journal
from ludus.data.json_files import int_field, object_field, read_lines
from ludus.data.run_folder import RUN_FILE, RunFolder
from ludus.data.tool_schema import JsonObject
from ludus.errors import LudusError, RunError
from ludus.rollout.episode_run import EpisodeRun
from ludus.rollout.progress import ProgressCallback
from ludus.rollout.stats import RunBudget, RunStats
from ludus.scoring.config import JUDGE, RescoreConfig
from ludus.scoring.judge import BudgetExhausted, Judgement, JudgeStats
from ludus.scoring.reward_functions import RewardFunction, RewardFunctions

JUDGEMENTS_FILE = "judgements.jsonl"
TRAINING_FILE = "training.json"
_JUDGE_COUNTS = ("calls", "cached", "failed")


class EpisodeLine(NamedTuple):
    """The position of an episode's line in a journal, and its outcome."""

    offset: int
    size: int
    reward: float | None
    """None if it is broken."""
    broken: bool
    group_id: str


@dataclass(frozen=True, slots=True)
class SourceRun:
    """A finished or stopped run whose episodes are scored again. Nothing of it is changed."""

    path: Path
    settings: JsonObject
    """Of its `run.json`."""
    digest: str
    lines: dict[str, EpisodeLine]
    """By episode id; see `index_episodes`."""

    @classmethod
    def open(cls, path: Path) -> SourceRun:
        """Read the heads of all lines of a run folder, or of a GRPO training's folder."""
        journal = path / "episodes.jsonl"
        if not path.is_dir():
            raise RunError(f"There is no run folder {path}.")
        if not journal.is_file():
            raise RunError(f"{path} has no episodes.jsonl.")
        lines = index_episodes(journal)
        if not lines:
            raise RunError(f"{journal} has no episodes.")
        if (path / RUN_FILE).is_file() or not (path / TRAINING_FILE).is_file():
            metadata = RunFolder.open(path).metadata
            return cls(path, metadata.settings, metadata.digest, lines)
        source = cls(path, {}, "", lines)
        first = next(iter(lines))
        settings = {"environment": source.read([first])[0].environment}
        return cls(path, settings, config_digest(settings), lines)

    def find_pending(self, journal: Path, *, retry_broken: bool) -> set[str]:
        """The ids of the episodes that the journal of the new run does not have yet.

        With `retry_broken`, also of episodes that broke there, unless they are broken here, too.
        """
        new_lines = index_episodes(journal) if journal.exists() else {}
        return {
            episode_id
            for episode_id, line in self.lines.items()
            if (new_line := new_lines.get(episode_id)) is None
            or (retry_broken and new_line.broken and not line.broken)
        }

    def read(self, ids: Iterable[str]) -> list[Episode]:
        """Read these episodes."""
        episodes = []
        with (self.path / "episodes.jsonl").open("rb") as file:
            for episode_id in ids:
                line = self.lines[episode_id]
                file.seek(line.offset)
                episodes.append(Episode.from_line(file.read(line.size)))
        return episodes


def index_episodes(journal: Path) -> dict[str, EpisodeLine]:
    """The first line of each episode that is not broken, or else its last, by episode id.

    Lines that are not episodes are skipped.
    """
    lines: dict[str, EpisodeLine] = {}
    offset = 0
    for number, line in enumerate(read_lines(journal), 1):
        if line.endswith(b"\n") and (head := parse_head(line, journal, number)) is not None:
            earlier = lines.get(head.episode_id)
            if earlier is None or earlier.broken:
                broken = StopReason(head.stop_reason).is_fault
                reward = None if broken else head.reward
                place = EpisodeLine(offset, len(line), reward, broken, head.group_id)
                lines[head.episode_id] = place
        offset += len(line)
    return lines


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
        """`judgements` takes what the judge replies."""
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
        """Of the units in progress, by episode id."""
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
            calls, cached, failed = (int_field(spent, name) or 0 for name in _JUDGE_COUNTS)
            usage = Usage.model_validate(object_field(spent, "usage"))
            self.judge.resume(JudgeStats(calls, cached, failed, usage))

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
