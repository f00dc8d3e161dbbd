"""`rescore`: score the episodes of a run again, without playing them, into a new run folder."""

from __future__ import annotations

from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pydantic_core import from_json

from ludus.client.event_loop import to_sync
from ludus.data.config import config_digest
from ludus.data.estimates import TaskRewards, is_zero_variance
from ludus.data.journal import Journal
from ludus.data.run_folder import RunFolder, find_unused_dir
from ludus.data.tool_schema import JsonObject
from ludus.errors import ConfigError
from ludus.rollout.progress import Notice, ProgressCallback, ignore_progress
from ludus.rollout.ray_cluster import open_cluster
from ludus.scoring.agreement import Agreement, ScorePair, measure_agreement
from ludus.scoring.config import JUDGE, RescoreConfig
from ludus.scoring.rescorer import JUDGEMENTS_FILE, Rescorer
from ludus.scoring.source_run import SourceRun, index_episodes

RUN_KIND = "rescore"


@dataclass(frozen=True, slots=True)
class RescoreResult:
    """The result of one start of a run."""

    folder: Path
    summary: dict[str, Any]
    """The content of `summary.json`: episodes, rewards, what the judge has used."""
    new_episodes: int
    """Episodes that this start has recorded."""
    stop_reason: str | None
    """Why the run ended before all episodes were scored, if it did."""
    comparison: Comparison


@dataclass(frozen=True, slots=True)
class Comparison:
    """The rewards of the same episodes before and after."""

    episodes: int
    scored_before: int
    scored_after: int
    mean_before: float | None
    interval_before: list[float] | None
    """The 95 % interval of the mean."""
    mean_after: float | None
    interval_after: list[float] | None
    changed: int
    """Episodes whose reward differs, also where only one of them is scored."""
    compared: str
    """What `agreement` compares with the stored reward: the judge's score, or the new reward."""
    agreement: Agreement

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
    path = default_output_dir(source, settings) if out is None else Path(out)
    if path.resolve() == source.path.resolve():
        raise ConfigError(f"`out` is the run itself, {path}. Use another `out`.")
    pending = source.find_pending(path / "episodes.jsonl", retry_broken=config.retry_broken)
    if config.judge is not None and (pending or not config.resume):
        config.judge.agent.check()
        await config.judge.agent.prepare()
    async with AsyncExitStack() as stack:
        cluster = await stack.enter_async_context(
            open_cluster(config.ray if pending or not config.resume else None)
        )
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
        rescorer = Rescorer(config, functions, source, folder, progress, cluster=cluster)
        await rescorer.run(journal, judgements)
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


def default_output_dir(source: SourceRun, settings: JsonObject) -> Path:
    """The folder beside the source; the same settings always give the same one."""
    path = source.path if source.path.name not in ("", "..") else source.path.resolve()
    return path.with_name(f"{path.name}-rescored-{config_digest(settings)}")


def compare_rewards(source: SourceRun, folder: RunFolder, *, has_judge: bool) -> Comparison:
    """Compare the rewards of the recorded episodes with those that they had."""
    lines = index_episodes(folder.episodes_path)
    pairs: list[ScorePair] = []
    rewards_before, rewards_after = TaskRewards(), TaskRewards()
    changed = 0
    with folder.episodes_path.open("rb") as file:
        for episode_id, line in lines.items():
            if (source_line := source.lines.get(episode_id)) is None:
                continue
            old, new = source_line.reward, line.reward
            if old is not None:
                rewards_before.add(line.group_id, old)
            if new is not None:
                rewards_after.add(line.group_id, new)
            if old is None or new is None:
                changed += old is not new
                continue
            changed += not is_zero_variance([old, new])
            file.seek(line.offset)
            fields = from_json(file.read(line.size))
            score = fields["rewards"].get(JUDGE) if has_judge else new
            if score is not None:
                pairs.append(ScorePair(line.group_id, old, score))
    before, after = rewards_before.estimate(), rewards_after.estimate()
    return Comparison(
        episodes=len(lines),
        scored_before=rewards_before.n,
        scored_after=rewards_after.n,
        mean_before=before.value if before else None,
        interval_before=before.interval if before else None,
        mean_after=after.value if after else None,
        interval_after=after.interval if after else None,
        changed=changed,
        compared=JUDGE if has_judge else "reward",
        agreement=measure_agreement(pairs),
    )
