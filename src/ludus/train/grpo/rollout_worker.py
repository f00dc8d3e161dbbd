"""Plays episodes for a trainer, in sessions that stay open between steps.

The trainer is synchronous; the episodes of a call are played concurrently on the background event
loop, by the same code that collecting and evaluating use.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from time import monotonic
from typing import Any, Self, TypeVar

from ludus.agents.agent import Agent
from ludus.client.event_loop import background_loop, run_sync
from ludus.data.episode import Episode
from ludus.data.tool_schema import JsonObject
from ludus.environment.mixture import Mixture
from ludus.environment.task_buckets import Bucket, evenly
from ludus.environment.task_splits import Split
from ludus.errors import ConfigError, RunError, describe_exception
from ludus.rollout.config import RolloutConfig
from ludus.rollout.endpoints import (
    PREFLIGHT_TASKS,
    EnvironmentEndpoint,
    close_endpoints,
    preflight_endpoints,
    preflight_tasks,
    resolve_endpoints,
)
from ludus.rollout.episode_loop import retry_faults, run_attempt
from ludus.rollout.held_out_tasks import find_splits
from ludus.rollout.plan import Plan
from ludus.rollout.progress import EpisodeProgress, PhaseProgress, Watchdog
from ludus.rollout.session_pool import SessionPool

CLOSE_TIMEOUT_S = 15.0
TICK_S = 0.25
UNREACHABLE_WARNING_S = 5.0
"""Seconds after which an unreachable server is reported."""
PREFLIGHT_SEARCH_TASKS = 8
"""Tasks per environment of the plan among which the preflight looks for tasks of each."""
T = TypeVar("T")
ScoreEpisode = Callable[[Episode], Awaitable[Episode]]
"""Sets an episode's reward, if there are reward functions."""


class RolloutWorker:
    """A context manager that holds the sessions.

    Args:
        environments: The environments to play.
        config: Limits, prompt and task of episodes, the server's address, retries and time-outs.
        score_episode: Called for each episode as soon as it has ended.
        say: Called with warnings about episodes that hang.
        on_phase: Called with the progress of what the worker starts to do.
        stop_requested: Returns why to stop, if so; asked while a server is unreachable.
    """

    def __init__(
        self,
        environments: Mixture,
        config: RolloutConfig,
        *,
        score_episode: ScoreEpisode | None = None,
        say: Callable[[str], None] = lambda text: None,
        on_phase: Callable[[PhaseProgress], None] = lambda progress: None,
        stop_requested: Callable[[], str | None] = lambda: None,
    ) -> None:
        self.environments, self.on_phase = environments, on_phase
        self.endpoints: dict[str, EnvironmentEndpoint] = {}
        self.agent: Agent | None = None
        """Plays the episodes; set once the model is loaded. It is closed with the worker."""
        self.divisible: frozenset[str] = frozenset()
        """The environments with enough different tasks to hold some out; see `find_splits`."""
        self._config, self._score_episode = config, score_episode
        self._say, self._stop_requested = say, stop_requested
        self._pools: dict[str, SessionPool] = {}
        self.stop_reason: str | None = None
        """Why the wait for an unreachable server was given up, if it was."""

    def __enter__(self) -> Self:
        config = self._config
        try:
            self.endpoints = self.run(
                resolve_endpoints(
                    self.environments, base_url=config.base_url, token=config.token, warn=self._say
                )
            )
            self._pools = {
                spec: SessionPool(endpoint.endpoint, reconnect_timeout=config.reconnect_timeout)
                for spec, endpoint in self.endpoints.items()
            }
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        async def close() -> None:
            await asyncio.gather(*(pool.close_idle() for pool in self._pools.values()))
            if self.agent is not None:
                await self.agent.close()
            await close_endpoints(self.endpoints)

        loop = background_loop()
        future = asyncio.run_coroutine_threadsafe(close(), loop)
        # A finalizer may run on the loop itself, which must not wait for itself.
        if asyncio._get_running_loop() is not loop:
            # With a time limit: an environment may block the loop.
            concurrent.futures.wait([future], CLOSE_TIMEOUT_S)
            if future.done():
                future.result()

    @property
    def names(self) -> tuple[str, ...]:
        """The environments' names in episodes."""
        return tuple(endpoint.name for endpoint in self.endpoints.values())

    def plan(
        self, run_id: str, *, seed: int, group_size: int,
        choose: Callable[[int], tuple[str, JsonObject]] | None = None, split: Split = "train",
    ) -> Plan:  # fmt: skip
        """An endless plan of tasks, each repeated `group_size` times; `choose`: see `Plan`."""
        return Plan(
            run_id=run_id,
            mixture=self.environments,
            seed=seed,
            group_size=group_size,
            task=dict(self._config.task),
            endpoints=self.endpoints,
            choose=choose,
            splits=dict.fromkeys(self.divisible, split),
        )

    def find_splits(self, buckets: Sequence[Bucket] = ()) -> None:
        """Find the environments with enough tasks to hold some out; warn about the others."""
        choose = evenly(buckets, len(buckets)) if buckets else None
        plan = self.plan("splits", seed=0, group_size=1, choose=choose)
        check = find_splits(plan, "test", self._say)
        self.divisible = frozenset(self.run(self._watch(check, {})))

    def preflight(self, *, seed: int) -> None:
        """Start a task in every environment, so that broken ones are found before training."""
        plan = self.plan("preflight", seed=seed, group_size=1)
        episodes = PREFLIGHT_SEARCH_TASKS * len(self.endpoints)
        statuses: dict[str, EpisodeProgress] = {}
        check = preflight_endpoints(plan, self.endpoints, episodes, statuses)
        self.run(self._watch(check, statuses))

    def preflight_buckets(self, buckets: Sequence[Bucket], *, seed: int) -> None:
        """Start a task of every bucket of a curriculum, so that none fails during training."""
        choose = evenly(buckets, len(buckets))
        plan, count = self.plan("preflight", seed=seed, group_size=1, choose=choose), len(buckets)
        failures: list[str] = []

        async def check_buckets() -> None:
            for number, bucket in enumerate(buckets):
                tasks = [plan[number + count * again].task for again in range(PREFLIGHT_TASKS)]
                name = f"The preflight check of {bucket.label}"
                statuses[name] = EpisodeProgress(name, bucket.spec, "reset")
                try:
                    await preflight_tasks(bucket.spec, self.endpoints[bucket.spec], tasks)
                except ConfigError as error:
                    failures.append(f"{bucket.label}: {error}")
                del statuses[name]

        statuses: dict[str, EpisodeProgress] = {}
        self.run(self._watch(check_buckets(), statuses))
        if failures:
            more = f" ({len(failures) - 1} more cannot either)" if len(failures) > 1 else ""
            raise ConfigError(f"A bucket of `curriculum` cannot be played{more}: {failures[0]}")

    def play(
        self, plan: Plan, indices: Sequence[int], phase: str = "Playing", *, in_log: bool = False
    ) -> list[Episode]:
        """Play these episodes of a plan concurrently; attempts that a fault ends are repeated."""
        agent, config = self.agent, self._config
        assert agent is not None
        progress = PhaseProgress(
            phase, len(indices), "episodes", in_log=in_log,
            count_tokens=lambda: agent.sampled_tokens,
        )  # fmt: skip
        self.on_phase(progress)
        statuses: dict[str, EpisodeProgress] = {}

        async def play_one(index: int) -> Episode:
            assignment, pool = plan[index], self._pools[plan.spec_of(index)]

            async def play_attempt(attempt: int) -> Episode:
                status = EpisodeProgress(assignment.episode_id, assignment.environment)
                statuses[assignment.episode_id] = status
                return await run_attempt(
                    assignment, agent, pool, limits=config.limits,
                    system_prompt=config.system_prompt, attempt=attempt, status=status,
                )  # fmt: skip

            try:
                episode = await retry_faults(
                    play_attempt, max_attempts=config.max_attempts, retry_delay=config.retry_delay
                )
            finally:
                statuses.pop(assignment.episode_id, None)
            assert episode is not None  # Only a run that is stopping returns None.
            if self._score_episode is not None:
                episode = await self._score_episode(episode)
            progress.advance(1)
            return episode

        async def play_all() -> list[Episode]:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(play_one(index)) for index in indices]
            return [task.result() for task in tasks]

        return self.run(self._watch(play_all(), statuses))

    async def _watch(
        self, coroutine: Coroutine[Any, Any, T], statuses: Mapping[str, EpisodeProgress]
    ) -> T:
        """Await the coroutine while watching its episodes and the servers."""
        reported: set[str] = set()
        watchdog = Watchdog(
            statuses, self._say, timeout=self._config.stall_warning,
            model_excused=lambda: self.agent is not None and self.agent.stall_expected,
        )  # fmt: skip

        async def tick_forever() -> None:
            while True:
                watchdog.heartbeat()
                self._check_servers(reported)
                await asyncio.sleep(TICK_S)

        with watchdog:
            async with asyncio.TaskGroup() as group:
                ticking = group.create_task(tick_forever())
                result = await coroutine
                ticking.cancel()
        return result

    def _check_servers(self, reported: set[str]) -> None:
        """Report each unreachable server once per rollout, and stop if that is requested.

        Stopping in the middle of a step loses nothing: no weights change during rollouts.
        """
        for spec, pool in self._pools.items():
            if pool.unreachable_since is None:
                continue
            self.stop_reason = self._stop_requested()
            if self.stop_reason is not None:
                raise RunError(
                    f"{spec} is unreachable, and the run was {self.stop_reason} while waiting for "
                    "it. The same command resumes from the step before."
                )
            silent_s = monotonic() - pool.unreachable_since
            if spec not in reported and silent_s > UNREACHABLE_WARNING_S:
                reported.add(spec)
                self._say(f"{spec} is unreachable; waiting for it")

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the event loop of the sessions."""
        try:
            return run_sync(coroutine)
        except BaseExceptionGroup as group:
            first: BaseException = group
            while isinstance(first, BaseExceptionGroup):
                first = first.exceptions[0]
            raise first from None
        except SystemExit as error:
            raise RunError(f"Playing episodes failed: {describe_exception(error)}.") from error
