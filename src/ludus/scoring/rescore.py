"""`rescore`: score the episodes of a run again, without playing them, into a new run folder."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from itertools import combinations
from math import ceil
from pathlib import Path

from pydantic_core import from_json

from ludus.client.event_loop import to_sync
from ludus.data.config import config_digest
from ludus.data.estimates import MeanEstimate, TaskRewards, is_zero_variance
from ludus.data.journal import Journal
from ludus.data.run_folder import RunFolder, find_unused_dir
from ludus.data.tool_schema import JsonObject
from ludus.errors import ConfigError
from ludus.rollout.progress import Notice, ProgressCallback, ignore_progress
from ludus.scoring.config import JUDGE, RescoreConfig
from ludus.scoring.rescorer import JUDGEMENTS_FILE, Rescorer, SourceRun, index_episodes

RUN_KIND = "rescore"
_MAX_PAIRED_ATTEMPTS = 100
"""Attempts at one task of which all pairs are compared; of more attempts, evenly spaced ones."""


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
    compared: str
    """What `pair_accuracy` compares with the stored reward: the judge's score or the new reward."""
    pair_accuracy: MeanEstimate | None
    """Share of pairs of attempts at one task, with different stored rewards, that both scores order
    alike; a tie counts one half. None without such pairs, or if the score never varies."""

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
    comparison = compare_rewards(source, folder, has_judge=config.judge is not None)
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


def compare_rewards(source: SourceRun, folder: RunFolder, *, has_judge: bool) -> Comparison:
    """Compare the new rewards of the recorded episodes with the old ones."""
    lines = index_episodes(folder.episodes_path)
    scores: defaultdict[str, list[tuple[float, float]]] = defaultdict(list)
    """By task: the stored reward of each attempt, and the score that is compared with it."""
    before, after, changed = TaskRewards(), TaskRewards(), 0
    with folder.episodes_path.open("rb") as file:
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
                continue
            changed += not is_zero_variance([old, new])
            file.seek(line.offset)
            fields = from_json(file.read(line.size))
            score = fields["rewards"].get(JUDGE) if has_judge else new
            if score is not None:
                scores[line.group_id].append((old, score))
    return Comparison(
        episodes=len(lines),
        before=before.estimate(),
        after=after.estimate(),
        changed=changed,
        compared=JUDGE if has_judge else "reward",
        pair_accuracy=measure_pair_accuracy(scores),
    )


def measure_pair_accuracy(
    scores: Mapping[str, Sequence[tuple[float, float]]],
) -> MeanEstimate | None:
    """Compare reference and score of attempts at the same task, pair by pair; see `Comparison`."""
    if is_zero_variance([score for task in scores.values() for _, score in task]):
        return None
    accuracy = TaskRewards()
    for name, task in scores.items():
        sample = task[:: ceil(len(task) / _MAX_PAIRED_ATTEMPTS)]
        for (reference, score), (other_reference, other_score) in combinations(sample, 2):
            if is_zero_variance([reference, other_reference]):
                continue
            if is_zero_variance([score, other_score]):
                accuracy.add(name, 0.5)
            else:
                is_concordant = (reference < other_reference) == (score < other_score)
                accuracy.add(name, float(is_concordant))
    return accuracy.estimate()
