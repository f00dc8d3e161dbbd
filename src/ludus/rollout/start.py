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
from ludus.client.event_loop import synchronous
from ludus.data.checksum import Checksum
from ludus.data.journal import Journal
from ludus.data.lines import listed_lines
from ludus.data.recorded import Recorded, read_back
from ludus.data.run import RunFolder, beside
from ludus.data.settings import digest
from ludus.data.tools import JsonObject
from ludus.errors import BadSetting, CapacityReached, ExecutionFailed, InvalidAction, RunError
from ludus.rollout.activity import Activity
from ludus.rollout.budget import Budget
from ludus.rollout.collector import Collector
from ludus.rollout.job import Job
from ludus.rollout.places import Place, find_places
from ludus.rollout.plan import Plan
from ludus.rollout.progress import Progress
from ludus.rollout.reporter import Reporter
from ludus.rollout.review import checksum_in, review
from ludus.rollout.tally import Tally
from ludus.rollout.tuning import Tuning

RUNS = Path("runs")
REHEARSAL_LIMIT = 300.0
REHEARSALS = 3
"""How many tasks have to crash before the environment is said to be at fault."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a start of a run came to."""

    folder: Path
    summary: dict[str, Any]
    fresh: int
    """Episodes that this start has recorded."""
    stopped: str | None
    """Why it ended before everything was played, if it did."""


async def collect(
    job: Job,
    agent: Agent | None = None,
    out: str | Path | None = None,
    *,
    base_url: str | None = None,
    token: str | None = None,
    resume: bool = True,
    retry_broken: bool = False,
    tuning: Tuning | None = None,
    budget: Budget | None = None,
    reporter: Reporter | None = None,
) -> Outcome:
    """Play every episode of a job that its run folder does not have yet.

    Without an agent the environment's own solution plays. Without `out` the folder's name is made
    from the settings, so that the same call goes on with the same run. `base_url` is where the
    environment is served, if not in this process.
    """
    if isinstance(agent, str):
        raise BadSetting(f"collect takes an agent, not its name: ludus.agent({agent!r}).")
    tuning, budget, reporter = tuning or Tuning(), budget or Budget(), reporter or Reporter()
    agent = agent or OracleAgent()
    path = default_folder(job, agent) if out is None else Path(out)
    if resume and (done := _finished(job, agent, path, retry_broken=retry_broken)):
        return done
    if budget.max_cost is not None and not agent.priced:
        raise BadSetting(
            "--max-cost needs a price, and none is known for this model. "
            "Say what it costs with --prices, or use --max-total-tokens."
        )
    if base_url is None:
        job.mix.check_installed()
    agent.check()
    model = agent.local_model
    reporter.phase(Progress(f"Checking {job.mix}", in_log=model is not None))
    places = await find_places(job.mix, base_url=base_url, token=token, warn=reporter.warn)
    plan = _plan(job, agent, places)
    await rehearse(plan, places, job.episodes)
    if model is not None:
        reporter.phase(Progress(f"Loading {model}", in_log=True))
    await agent.prepare([place.name for place in places.values()])
    reporter.checked()
    settings = job.settings(agent)
    folder = (
        RunFolder.resume_or_create(path, settings)
        if resume
        else RunFolder.create(beside(path), settings)
    )
    with Journal.open(folder.episodes) as journal:
        if journal.repaired:
            reporter.warn(journal.repaired)
        recorded = read_back(
            folder.episodes, run=folder.about.digest, checksum=_known_checksum(folder)
        )
        for words in _oddities(folder.episodes, recorded):
            reporter.warn(words)
        collector = Collector(
            job,
            agent,
            folder,
            plan,
            places,
            tally=Tally.of(recorded, job.episodes, retry_broken=retry_broken),
            todo=recorded.open_until(job.episodes, retry_broken=retry_broken),
            tuning=tuning,
            budget=budget,
            reporter=reporter,
        )
        await collector.run(journal)
    return Outcome(
        folder=folder.path,
        summary=collector.tally.summary(),
        fresh=collector.tally.fresh,
        stopped=collector.stopped,
    )


collect_sync = synchronous(collect)
"""`collect` for callers that do not await, in a notebook too."""


def _finished(job: Job, agent: Agent, path: Path, *, retry_broken: bool) -> Outcome | None:
    """The run as it is, if it has all that is asked for: then no server and no model is needed."""
    if not (path / "run.json").exists():
        return None
    facts = review(RunFolder.resume_or_create(path, job.settings(agent)), verified=True)
    complete = facts["complete"] and facts["planned"] >= job.episodes
    if not complete or (retry_broken and facts["broken"]):
        return None
    return Outcome(folder=path, summary=facts, fresh=0, stopped=None)


def _known_checksum(folder: RunFolder) -> Checksum | None:
    try:
        return checksum_in(folder.read_summary() or {})
    except RunError:
        return None  # A summary that cannot be read vouches for nothing.


def _oddities(journal: Path, recorded: Recorded) -> Iterator[str]:
    """What is in a journal that this run has not written."""
    if recorded.unreadable:
        damaged = listed_lines(recorded.unreadable, recorded.unreadable_lines)
        yield f"{journal} has {damaged}. They stay there; their episodes are played again."
    if recorded.foreign:
        yield f"{journal} has {recorded.foreign} episodes of other runs; they are left alone."
    if recorded.duplicates:
        yield f"{journal} has {recorded.duplicates} episodes twice; the first of each counts."


def default_folder(job: Job, agent: Agent) -> Path:
    """The same job always gets the same folder."""
    words = re.sub(r"[^A-Za-z0-9._]+", "-", str(job.mix)).strip("-")[:60]
    return RUNS / f"{words}-{digest(job.settings(agent))}"


def _plan(job: Job, agent: Agent, places: Mapping[str, Place]) -> Plan:
    return Plan(
        run_id=digest(job.settings(agent)),
        environments=job.mix,
        seed=job.seed,
        group_size=job.group_size,
        task=job.task,
        names={spec: place.name for spec, place in places.items()},
        variants={spec: place.variant_task for spec, place in places.items()},
        tasks=job.tasks,
    )


async def rehearse(
    plan: Plan,
    places: Mapping[str, Place],
    episodes: int,
    activities: MutableMapping[str, Activity] | None = None,
) -> None:
    """Begin a task everywhere, so that what cannot be is said before there is a run folder.

    `activities` has what is being done, for a watchdog to look at.
    """
    activities = {} if activities is None else activities
    for spec, place in places.items():
        firsts = range(0, episodes, plan.group_size)
        tasks = (plan[index].task for index in firsts if plan.spec_of(index) == spec)
        activities[spec] = Activity(f"The rehearsal of {spec}", place.name, "reset")
        await _begin_one_of(spec, place, list(islice(tasks, REHEARSALS)))
        del activities[spec]


async def _begin_one_of(spec: str, place: Place, tasks: Sequence[JsonObject]) -> None:
    """One task may have a crash of its own; several in a row are a fault of them all."""
    crash: ExecutionFailed | None = None
    for task in tasks:
        try:
            async with asyncio.timeout(REHEARSAL_LIMIT), place.endpoint.session() as session:
                await session.reset(**task)
            return
        except InvalidAction as error:
            raise BadSetting(str(error)) from None
        except ExecutionFailed as error:
            crash = error
        except TimeoutError:
            raise BadSetting(
                f"{spec} has not begun an episode after {REHEARSAL_LIMIT:g} s."
            ) from None
        except CapacityReached:
            return  # Others use the server: the run will wait for its turn.
    if crash is not None:
        raise BadSetting(f"{spec} cannot begin an episode: {crash}")
