"""Begins a run, or goes on with one where it stood."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from ludus.agents.agent import Agent
from ludus.agents.oracle import OracleAgent
from ludus.client.event_loop import to_sync
from ludus.data.checksum import Checksum
from ludus.data.config_diff import config_digest
from ludus.data.episode_reader import format_damaged_lines
from ludus.data.journal import Journal
from ludus.data.resume_index import ResumeIndex, read_resume_index
from ludus.data.run_folder import RunFolder, create_unused_dir
from ludus.data.tool_schema import JsonObject
from ludus.errors import CapacityReached, ConfigError, ExecutionFailed, InvalidAction, RunError
from ludus.rollout.budget import Budget
from ludus.rollout.callbacks import CollectProgress
from ludus.rollout.collector import Collector
from ludus.rollout.config import CollectConfig
from ludus.rollout.endpoints import EnvironmentEndpoint, resolve_endpoints
from ludus.rollout.episode_status import EpisodeStatus
from ludus.rollout.options import RolloutOptions
from ludus.rollout.plan import Plan
from ludus.rollout.progress import PhaseProgress
from ludus.rollout.stats import RunStats
from ludus.rollout.summary import parse_checksum, summarize_run

RUNS_DIR = Path("runs")
PREFLIGHT_TIMEOUT_S = 300.0
PREFLIGHT_TASKS = 3
"""How many tasks have to crash before the environment is said to be at fault."""


@dataclass(frozen=True, slots=True)
class CollectResult:
    """What a start of a run came to."""

    folder: Path
    summary: dict[str, Any]
    new_episodes: int
    """Episodes that this start has recorded."""
    stop_reason: str | None
    """Why it ended before everything was played, if it did."""


async def collect(
    config: CollectConfig,
    agent: Agent | None = None,
    out: str | Path | None = None,
    *,
    base_url: str | None = None,
    token: str | None = None,
    resume: bool = True,
    retry_broken: bool = False,
    options: RolloutOptions | None = None,
    budget: Budget | None = None,
    progress: CollectProgress | None = None,
) -> CollectResult:
    """Play every episode of a job that its run folder does not have yet.

    Without an agent the environment's own solution plays. Without `out` the folder's name is made
    from the settings, so that the same call goes on with the same run. `base_url` is where the
    environment is served, if not in this process.
    """
    if isinstance(agent, str):
        raise ConfigError(f"collect takes an agent, not its name: ludus.agent({agent!r}).")
    options, budget, progress = (
        options or RolloutOptions(),
        budget or Budget(),
        progress or CollectProgress(),
    )
    agent = agent or OracleAgent()
    path = default_output_dir(config, agent) if out is None else Path(out)
    if resume and (done := _completed_result(config, agent, path, retry_broken=retry_broken)):
        return done
    if budget.max_cost is not None and not agent.has_price:
        raise ConfigError(
            "--max-cost needs a price, and none is known for this model. "
            "Say what it costs with --prices, or use --max-total-tokens."
        )
    if base_url is None:
        config.mixture.check_installed()
    agent.check()
    model = agent.local_model
    progress.phase(PhaseProgress(f"Checking {config.mixture}", in_log=model is not None))
    places = await resolve_endpoints(
        config.mixture, base_url=base_url, token=token, warn=progress.warn
    )
    plan = _build_plan(config, agent, places)
    await preflight(plan, places, config.episodes)
    if model is not None:
        progress.phase(PhaseProgress(f"Loading {model}", in_log=True))
    await agent.prepare([place.name for place in places.values()])
    progress.checked()
    settings = config.identity(agent)
    folder = (
        RunFolder.resume_or_create(path, settings)
        if resume
        else RunFolder.create(create_unused_dir(path), settings)
    )
    with Journal.open(folder.episodes_path) as journal:
        if journal.repair_note:
            progress.warn(journal.repair_note)
        recorded = read_resume_index(
            folder.episodes_path, run=folder.metadata.digest, checksum=_summary_checksum(folder)
        )
        for words in _journal_warnings(folder.episodes_path, recorded):
            progress.warn(words)
        collector = Collector(
            config,
            agent,
            folder,
            plan,
            places,
            stats=RunStats.from_index(recorded, config.episodes, retry_broken=retry_broken),
            pending=recorded.pending_indices(config.episodes, retry_broken=retry_broken),
            options=options,
            budget=budget,
            progress=progress,
        )
        await collector.run(journal)
    return CollectResult(
        folder=folder.path,
        summary=collector.stats.summary(),
        new_episodes=collector.stats.new_episodes,
        stop_reason=collector.stop_reason,
    )


collect_sync = to_sync(collect)
"""`collect` for callers that do not await, in a notebook too."""


def _completed_result(
    config: CollectConfig, agent: Agent, path: Path, *, retry_broken: bool
) -> CollectResult | None:
    """The run as it is, if it has all that is asked for: then no server and no model is needed."""
    if not (path / "run.json").exists():
        return None
    facts = summarize_run(RunFolder.resume_or_create(path, config.identity(agent)), verify=True)
    complete = facts["complete"] and facts["planned"] >= config.episodes
    if not complete or (retry_broken and facts["broken"]):
        return None
    return CollectResult(folder=path, summary=facts, new_episodes=0, stop_reason=None)


def _summary_checksum(folder: RunFolder) -> Checksum | None:
    try:
        return parse_checksum(folder.read_summary() or {})
    except RunError:
        return None  # A summary that cannot be read vouches for nothing.


def _journal_warnings(journal: Path, index: ResumeIndex) -> Iterator[str]:
    """What is in a journal that this run has not written."""
    if index.unreadable:
        damaged = format_damaged_lines(index.unreadable, index.unreadable_lines)
        yield f"{journal} has {damaged}. They stay there; their episodes are played again."
    if index.foreign:
        yield f"{journal} has {index.foreign} episodes of other runs; they are left alone."
    if index.duplicates:
        yield f"{journal} has {index.duplicates} episodes twice; the first of each counts."


def default_output_dir(config: CollectConfig, agent: Agent) -> Path:
    """The same job always gets the same folder."""
    words = re.sub(r"[^A-Za-z0-9._]+", "-", str(config.mixture)).strip("-")[:60]
    return RUNS_DIR / f"{words}-{config_digest(config.identity(agent))}"


def _build_plan(
    config: CollectConfig, agent: Agent, endpoints: Mapping[str, EnvironmentEndpoint]
) -> Plan:
    return Plan(
        run_id=config_digest(config.identity(agent)),
        mixture=config.mixture,
        seed=config.seed,
        group_size=config.group_size,
        task=config.task,
        names={spec: place.name for spec, place in endpoints.items()},
        variant_tasks={spec: place.variant_task for spec, place in endpoints.items()},
        tasks=config.tasks,
    )


async def preflight(
    plan: Plan,
    endpoints: Mapping[str, EnvironmentEndpoint],
    num_episodes: int,
    statuses: MutableMapping[str, EpisodeStatus] | None = None,
) -> None:
    """Begin a task everywhere, so that what cannot be is said before there is a run folder.

    `activities` has what is being done, for a watchdog to look at.
    """
    statuses = {} if statuses is None else statuses
    for spec, place in endpoints.items():
        firsts = range(0, num_episodes, plan.group_size)
        tasks = (plan[index].task for index in firsts if plan.spec_of(index) == spec)
        statuses[spec] = EpisodeStatus(f"The rehearsal of {spec}", place.name, "reset")
        await _check_reset(spec, place, list(islice(tasks, PREFLIGHT_TASKS)))
        del statuses[spec]


async def _check_reset(
    spec: str, endpoint: EnvironmentEndpoint, tasks: Sequence[JsonObject]
) -> None:
    """One task may have a crash of its own; several in a row are a fault of them all."""
    crash: ExecutionFailed | None = None
    for task in tasks:
        try:
            async with asyncio.timeout(PREFLIGHT_TIMEOUT_S), endpoint.endpoint.session() as session:
                await session.reset(**task)
            return
        except InvalidAction as error:
            raise ConfigError(str(error)) from None
        except ExecutionFailed as error:
            crash = error
        except TimeoutError:
            raise ConfigError(
                f"{spec} has not begun an episode after {PREFLIGHT_TIMEOUT_S:g} s."
            ) from None
        except CapacityReached:
            return  # Others use the server: the run will wait for its turn.
    if crash is not None:
        raise ConfigError(f"{spec} cannot begin an episode: {crash}")
