"""`collect`: start a run of episodes, or continue one."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ludus.client.event_loop import to_sync
from ludus.data.config import config_digest
from ludus.data.episode_reader import format_damaged_lines
from ludus.data.files import Checksum
from ludus.data.journal import Journal
from ludus.data.resume_index import ResumeIndex, read_resume_index
from ludus.data.run_folder import RUN_FILE, RUNS_DIR, RunFolder, create_unused_dir
from ludus.data.tool_schema import JsonObject
from ludus.environment.mixture import Mixture
from ludus.errors import ConfigError
from ludus.rollout.collector import Collector, check_workers, reason_against_workers
from ludus.rollout.config import CollectConfig
from ludus.rollout.endpoints import open_endpoints, preflight_endpoints, preflight_tasks
from ludus.rollout.plan import build_plan
from ludus.rollout.progress import (
    ChecksPassed,
    Notice,
    PhaseProgress,
    ProgressCallback,
    ignore_progress,
)
from ludus.rollout.ray_cluster import hosted_endpoints, open_cluster
from ludus.rollout.stats import summarize_run


@dataclass(frozen=True, slots=True)
class CollectResult:
    """The result of one start of a run."""

    folder: Path
    summary: dict[str, Any]
    """The content of `summary.json`: episodes, rewards, usage."""
    new_episodes: int
    """Episodes that this start has recorded."""
    stop_reason: str | None
    """Why it was told to stop, if it was: also while the last episodes were played."""


async def collect(
    env: str | Mixture,
    out: str | Path | None = None,
    config: CollectConfig | None = None,
    *,
    progress: ProgressCallback = ignore_progress,
) -> CollectResult:
    """Play the episodes of a run that its folder does not have yet.

    Args:
        env: the environment: a spec such as `wordle`, a URL, `docker:IMAGE`, or a mixture.
        out: the run folder. By default it is named after the settings, below `runs/`, so that the
            same call continues the same run.
        config: which episodes are played, and by whom.
        progress: called with each event, such as `ludus.progress()`.
    """
    config = config or CollectConfig()

    def warn(message: str) -> None:
        progress(Notice(message))

    mixture, agent = config.parse_environment(env), config.build_player()
    settings = config.identity(mixture, agent)
    path = default_output_dir(mixture, settings) if out is None else Path(out)
    if config.resume and (result := _completed_result(path, settings, config)):
        return result
    if config.max_cost is not None and not agent.has_price:
        raise ConfigError(
            "`max_cost` needs a price, and none is known for this model. "
            "Give its price with `prices`, or use `max_total_tokens`."
        )
    if config.base_url is None:
        mixture.check_installed()
    buckets = config.build_sweep(mixture)
    agent.check()
    model = agent.local_model
    progress(PhaseProgress(f"Checking {mixture}", in_log=model is not None))
    async with AsyncExitStack() as stack:
        if config.ray is not None:
            progress(PhaseProgress(f"Connecting to Ray ({config.ray})"))
        cluster = await stack.enter_async_context(open_cluster(config.ray))
        endpoints = await stack.enter_async_context(
            open_endpoints(mixture, base_url=config.base_url, token=config.token, warn=warn)
        )
        check_workers(config.workers, agent, endpoints, cluster)
        plan = build_plan(config, config_digest(settings), mixture, endpoints, buckets)
        tools = await preflight_endpoints(plan, endpoints, config.total_episodes)
        for number, bucket in enumerate(buckets):
            task = plan[number * config.group_size].task
            await preflight_tasks(bucket.spec, endpoints[bucket.spec], [task])
        if model is not None:
            progress(PhaseProgress(f"Loading {model}", in_log=True))
        await agent.prepare({endpoints[spec].name: tools[spec] for spec in endpoints})
        if cluster is not None and reason_against_workers(agent, endpoints) is not None:
            # The agent stays here: its key, its rate limit and its cache are those of one process.
            num_hosts = min(config.workers or cluster.num_cores, config.concurrency)
            hosted = hosted_endpoints(endpoints, num_hosts)
            endpoints = await stack.enter_async_context(hosted)
        progress(ChecksPassed())
        folder = (
            RunFolder.resume_or_create(path, settings)
            if config.resume
            else RunFolder.create(create_unused_dir(path), settings)
        )
        with Journal.open(folder.episodes_path) as journal:
            if journal.repair_note:
                warn(journal.repair_note)
            index = _read_index(folder, warn)
            collector = Collector(
                config, agent, folder, plan, endpoints, index, progress, cluster=cluster
            )
            await collector.run(journal)
    return CollectResult(
        folder=folder.path,
        summary=collector.stats.summary(),
        new_episodes=collector.stats.new_episodes,
        stop_reason=collector.stop_reason,
    )


collect_sync = to_sync(collect)
"""`collect` for callers that do not await; also works in a notebook."""


def _completed_result(
    path: Path, settings: JsonObject, config: CollectConfig
) -> CollectResult | None:
    """The result of a run that is complete already: it needs neither a server nor a model."""
    if not (path / RUN_FILE).exists():
        return None
    summary = summarize_run(RunFolder.resume_or_create(path, settings), verify=True)
    complete = summary["complete"] and summary["planned"] >= config.total_episodes
    if not complete or (config.retry_broken and summary["broken"]):
        return None
    return CollectResult(folder=path, summary=summary, new_episodes=0, stop_reason=None)


def _read_index(folder: RunFolder, warn: Callable[[str], None]) -> ResumeIndex:
    """Read which episodes the run has, and warn about lines that this run has not written."""
    # Without a checksum every line is parsed.
    checksum = Checksum.from_summary(folder.read_summary())
    journal = folder.episodes_path
    index = read_resume_index(journal, run=folder.metadata.digest, checksum=checksum)
    if index.unreadable:
        damaged = format_damaged_lines(index.unreadable, index.unreadable_lines)
        warn(f"{journal} has {damaged}. They stay there; their episodes are played again.")
    if index.foreign:
        warn(f"{journal} has {index.foreign} episodes of other runs; they are ignored.")
    if index.duplicates:
        warn(f"{journal} has {index.duplicates} episodes twice; the first of each counts.")
    return index


def default_output_dir(mixture: Mixture, settings: JsonObject) -> Path:
    """The folder of a run without `out`; the same settings always give the same one."""
    name = re.sub(r"[^A-Za-z0-9._]+", "-", str(mixture)).strip("-")[:60]
    return RUNS_DIR / f"{name}-{config_digest(settings)}"
