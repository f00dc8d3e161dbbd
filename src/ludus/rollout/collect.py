"""`collect`: start a run of episodes, or continue one."""

from __future__ import annotations

import asyncio
import re
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from ludus.agents.agent import Agent
from ludus.client.endpoint import LocalEndpoint
from ludus.client.event_loop import to_sync
from ludus.data.config import config_digest
from ludus.data.episode import Episode, Usage
from ludus.data.episode_reader import ResumeIndex, format_damaged_lines, read_resume_index
from ludus.data.files import Checksum
from ludus.data.journal import Journal
from ludus.data.run_folder import RUN_FILE, RUNS_DIR, RunFolder, find_unused_dir
from ludus.data.tool_schema import JsonObject
from ludus.environment.mixture import Mixture
from ludus.errors import ConfigError, LudusError, WorkersFailed
from ludus.rollout.config import CollectConfig
from ludus.rollout.endpoints import (
    EnvironmentEndpoint,
    close_endpoints,
    preflight_endpoints,
    preflight_tasks,
    resolve_endpoints,
)
from ludus.rollout.episode_loop import build_broken_record, retry_faults, run_attempt
from ludus.rollout.episode_run import EpisodeRun
from ludus.rollout.held_out_tasks import find_splits
from ludus.rollout.plan import Assignment, Plan, build_plan
from ludus.rollout.process_worker import ProcessWorkers, available_cores
from ludus.rollout.progress import (
    ChecksPassed,
    EpisodeProgress,
    Notice,
    PhaseProgress,
    ProgressCallback,
    Watchdog,
    ignore_progress,
)
from ludus.rollout.ray_cluster import RayWorkers, open_cluster
from ludus.rollout.session_pool import SessionPool
from ludus.rollout.stats import RunStats, summarize_run
from ludus.rollout.workers import EpisodePlay, EpisodeWorkers, WorkerSource

MAX_QUEUED_EPISODES = 32
"""Episodes beyond the agent's concurrency limit that are kept ready for the next free call."""
MEASURED_S = 1.0
"""Seconds of playing in this process from which the rest of the run is estimated."""
MIN_CPU_SHARE = 0.5
"""Minimum share of that time spent computing: otherwise more processes do not help."""
MIN_SECONDS_PER_WORKER = 1.5
"""Seconds of playing that are worth the start of a worker, which imports the environment."""
MAX_WORKERS = 16
"""Limit of automatic workers: this process cannot record the episodes of many more."""


@dataclass(frozen=True, slots=True)
class CollectResult:
    """The result of one start of a run."""

    folder: Path
    summary: JsonObject
    """The content of `summary.json`: episodes, rewards, usage."""
    new_episodes: int
    """Episodes that this start has recorded."""
    stop_reason: str | None
    """Why it was told to stop, if so, also during the last episodes."""


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
    path = default_collect_dir(mixture, settings) if out is None else Path(out)
    if config.resume and (path / RUN_FILE).exists():
        # A complete run needs neither a server nor a model.
        summary = summarize_run(RunFolder.resume_or_create(path, settings), verify=True)
        complete = summary["complete"] and summary["planned"] >= config.total_episodes
        if complete and not (config.retry_broken and summary["broken"]):
            return CollectResult(path, summary, new_episodes=0, stop_reason=None)
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
        num_cores = None
        if config.ray is not None:
            progress(PhaseProgress(f"Connecting to Ray ({config.ray})"))
            num_cores = await stack.enter_async_context(open_cluster(config.ray))
        endpoints = await resolve_endpoints(
            mixture, base_url=config.base_url, token=config.token, warn=warn
        )
        stack.push_async_callback(close_endpoints, endpoints)
        reason = reason_against_workers(agent, endpoints)
        if reason is not None and config.ray is not None:
            raise ConfigError(f"`ray` cannot be used: {reason}. Leave it out.")
        if reason is not None and (config.workers or 1) > 1:
            raise ConfigError(f"`workers` cannot be {config.workers}: {reason}. Leave it out.")
        plan = build_plan(config, config_digest(settings), mixture, endpoints, buckets)
        tools = await preflight_endpoints(plan, endpoints, config.total_episodes)
        for number, bucket in enumerate(buckets):
            task = plan[number * config.group_size].task
            await preflight_tasks(bucket.spec, endpoints[bucket.spec], [task])
        plan = replace(plan, splits=await find_splits(plan, config.split, warn))
        if model is not None:
            progress(PhaseProgress(f"Loading {model}", in_log=True))
        await agent.prepare({endpoints[spec].name: tools[spec] for spec in endpoints})
        progress(ChecksPassed())
        folder = (
            RunFolder.resume_or_create(path, settings)
            if config.resume
            else RunFolder.create(find_unused_dir(path), settings)
        )
        with Journal.open(folder.episodes_path) as journal:
            if journal.repair_note:
                warn(journal.repair_note)
            index = _read_index(folder, warn)
            collector = Collector(
                config, agent, folder, plan, endpoints, index, progress, num_cores=num_cores
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


def default_collect_dir(mixture: Mixture, settings: JsonObject) -> Path:
    """The folder of a run without `out`; the same settings always give the same one."""
    name = re.sub(r"[^A-Za-z0-9._]+", "-", str(mixture)).strip("-")[:60]
    return RUNS_DIR / f"{name}-{config_digest(settings)}"


class Collector(EpisodeRun):
    """One start of one run: plays what is pending in `index` and appends it to the journal."""

    agent: Agent

    def __init__(
        self,
        config: CollectConfig,
        agent: Agent,
        folder: RunFolder,
        plan: Plan,
        endpoints: Mapping[str, EnvironmentEndpoint],
        index: ResumeIndex,
        progress: ProgressCallback,
        *,
        num_cores: int | None = None,
    ) -> None:
        retry_broken = config.retry_broken
        stats = RunStats.from_index(index, config.total_episodes, retry_broken=retry_broken)
        super().__init__(folder, stats, config.budget, progress)
        self.config, self.concurrency = config, config.concurrency
        self.agent = agent
        self.decoding = PhaseProgress(count_tokens=lambda: agent.sampled_tokens)
        self.statuses: dict[str, EpisodeProgress] = {}
        """What each active episode is doing, by episode id."""
        self.workers: EpisodeWorkers | None = None
        """Processes, here or on other machines, that play instead of this one."""
        self._plan = plan
        self._endpoints = endpoints
        self._num_cores = num_cores
        """Cores of the cluster, if the run has one."""
        self._pending = index.pending_indices(config.total_episodes, retry_broken=retry_broken)
        self._pools = {
            spec: SessionPool(each.endpoint, reconnect_timeout=config.reconnect_timeout)
            for spec, each in endpoints.items()
        }
        self._watchdog = Watchdog(
            self.statuses,
            self.warn,
            timeout=config.stall_warning,
            model_excused=lambda: agent.stall_expected,
        )
        self._not_started = 0
        """Episodes whose task was created and has not run yet."""
        self._can_use_workers = reason_against_workers(agent, endpoints) is None
        self._workers_start: asyncio.Task[None] | None = None
        self._cpu_started_at = time.process_time()

    @property
    def unreachable_server(self) -> str | None:
        """A server that cannot be reached at the moment, if there is one."""
        pools = (pool for pool in self._pools.values() if pool.unreachable_since is not None)
        return next((pool.endpoint.spec for pool in pools), None)

    @property
    def max_active(self) -> float:
        """Maximum number of episodes in progress at the moment.

        More than the agent's concurrency limit: some episodes are always waiting for their
        environment or for a retry, and a free call should find another one ready.
        """
        limit = self.agent.concurrency_limit
        active = self.concurrency if limit is None else limit + min(limit, MAX_QUEUED_EPISODES)
        if self.workers is not None:
            # They are fewer than the concurrency limit; what is more than that waits for them.
            active = self.workers.capacity
        return min(active, self.budget.max_active(self.stats))

    def exhausted_reason(self) -> str | None:
        active_usage: list[Usage] = []
        if self.budget.limits_spending:
            active_usage += (status.usage for status in self.statuses.values())
            active_usage += [Usage()] * self._not_started
        return self.budget.exhausted_reason(self.stats, active_usage)

    async def run(self, journal: Journal) -> None:
        with self._watchdog:
            await super().run(journal)

    async def open(self) -> None:
        """Start the given number of workers, if there is one, or the workers of the cluster."""
        count = self.config.workers
        if self._num_cores is not None:
            await self._start_workers(RayWorkers, count or self._num_cores)
        elif count is not None and count > 1:
            await self._start_workers(ProcessWorkers, count)

    def on_tick(self) -> None:
        """Feed the watchdog, and start workers once the rest of the run takes long enough."""
        self._watchdog.heartbeat()
        seconds, seconds_left = self.stats.seconds, self.stats.seconds_left
        is_automatic = self.config.workers is None and self._num_cores is None
        may_start = self._can_use_workers and is_automatic and self._workers_start is None
        if not may_start or seconds_left is None:
            return
        cpu_seconds = time.process_time() - self._cpu_started_at
        if seconds >= MEASURED_S and cpu_seconds >= MIN_CPU_SHARE * seconds:
            worthwhile = int(seconds_left / MIN_SECONDS_PER_WORKER)
            count = min(MAX_WORKERS, available_cores(), worthwhile, self.concurrency)
            if count > 1:
                self._workers_start = asyncio.create_task(self._start_workers_late(count))

    async def _start_workers_late(self, count: int) -> None:
        try:
            await self._start_workers(ProcessWorkers, count)
        except WorkersFailed as error:
            self.warn(str(error))

    async def _start_workers(self, source: Callable[[EpisodePlay], WorkerSource], n: int) -> None:
        work = EpisodePlay(
            agent=self.agent,
            specs={each.name: spec for spec, each in self._endpoints.items()},
            limits=self.config.limits,
            system_prompt=self.config.system_prompt,
        )
        workers = EpisodeWorkers(source(work), min(n, self.concurrency), self.warn)
        await workers.start()
        self.workers = workers

    async def close(self) -> None:
        if self._workers_start is not None:
            self._workers_start.cancel()
            await asyncio.gather(self._workers_start, return_exceptions=True)
        if self.workers is not None:
            await self.workers.close()
        await asyncio.gather(*(pool.close_idle() for pool in self._pools.values()))

    def items(self) -> Iterable[int]:
        return self._pending

    def work(self, item: int) -> Coroutine[None, None, None]:
        self._not_started += 1
        return self._run_episode(item)

    async def _run_episode(self, index: int) -> None:
        self._not_started -= 1
        assignment, pool = self._plan[index], self._pools[self._plan.spec_of(index)]
        try:
            episode = await retry_faults(
                lambda attempt: self._run_attempt(assignment, pool, attempt),
                max_attempts=self.config.max_attempts,
                retry_delay=self.config.retry_delay,
                stopping=self.stopping,
            )
        finally:
            self.statuses.pop(assignment.episode_id, None)
        if episode is not None:
            self.record(episode, self.statuses)
        self.end(assignment.episode_id)

    async def _run_attempt(
        self, assignment: Assignment, pool: SessionPool, attempt: int
    ) -> Episode:
        status = EpisodeProgress(assignment.episode_id, assignment.environment)
        self.statuses[assignment.episode_id] = status
        limits = self.config.limits
        if self.workers is None:
            episode = await run_attempt(
                assignment,
                self.agent,
                pool,
                limits=limits,
                system_prompt=self.config.system_prompt,
                attempt=attempt,
                status=status,
            )
        else:
            try:
                with status.track("environment", "a worker"):
                    episode = await self.workers.run((assignment, attempt))
            except LudusError as error:
                episode = build_broken_record(
                    assignment, self.agent, limits, error, attempt=attempt, status=status
                )
        self.stats.record_attempt(episode)
        return episode


def reason_against_workers(
    agent: Agent, endpoints: Mapping[str, EnvironmentEndpoint]
) -> str | None:
    """Why these episodes cannot be played in worker processes; None if they can."""
    if not agent.is_stateless:
        return f"the agent {agent.provider!r} cannot be copied to other processes"
    for spec, each in endpoints.items():
        if not isinstance(each.endpoint, LocalEndpoint):
            return f"{spec} does not run in this process"
        env = each.endpoint.env_spec
        if env.cls.__module__ == "__main__":
            return f"{spec} is defined in the script itself, which other processes cannot import"
        if env.is_async or env.single_thread or not env.concurrent or env.max_sessions is not None:
            return f"{spec} is asynchronous or limits its sessions"
    names = Counter(each.name for each in endpoints.values())
    return next((f"{n} specs are named {name}" for name, n in names.items() if n > 1), None)
