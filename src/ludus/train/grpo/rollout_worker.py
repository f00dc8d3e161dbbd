"""Where a model under training plays: a thread with an event loop, and sessions that stay open.

Training is a program that waits; playing is many conversations at once. All episodes that are asked
for are under way together, on the loop that collecting and evaluating use. What is learned from
them is not its business.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from concurrent.futures import Future, wait
from threading import Thread
from time import monotonic
from typing import Any, Self, TypeVar

from ludus.agents.agent import Agent
from ludus.data.episode import Episode
from ludus.environment.error_mapping import describe_exception
from ludus.environment.mixture import Mixture
from ludus.errors import RunError
from ludus.rollout.attempts import EpisodeRunner
from ludus.rollout.collect import preflight
from ludus.rollout.config import RolloutConfig
from ludus.rollout.endpoints import EnvironmentEndpoint, resolve_endpoints
from ludus.rollout.loop import EpisodeLimits
from ludus.rollout.monitoring import EpisodeStatus, LoopLagMonitor, instant_environments
from ludus.rollout.plan import Plan
from ludus.rollout.progress import PhaseProgress, RolloutProgress
from ludus.rollout.session_pool import SessionPool
from ludus.train.grpo.monitor import RolloutMonitor

CLOSE_TIMEOUT_S = 15.0
"""Seconds that sessions get to be closed."""
THREAD_POLL_S = 1.0
"""Seconds after which whoever waits for the thread looks whether it is still there."""
T = TypeVar("T")
ScoreEpisode = Callable[[Episode], Awaitable[Episode]]
"""Gives an episode its reward, where the environment's own is not all of it."""


async def _keep_reward(episode: Episode) -> Episode:
    return episode


class RolloutWorker:
    """Use it as a context manager; the agent may come later than the environments.

    Args:
        environments: what is played.
        limits: where an episode is cut off.
        task: arguments of reset for every episode.
        scored: asked for each episode as soon as it has ended.
        base_url: where a single environment is served, if not in this process.
        say: told of what hangs.
        phase: told what is being done, and given how far it is.
        stopping: why to stop, once somebody wants that; asked while a server is waited for.
    """

    agent: Agent

    def __init__(
        self,
        environments: Mixture,
        *,
        limits: EpisodeLimits,
        system_prompt: str | None,
        task: Mapping[str, Any] | None = None,
        scored: ScoreEpisode = _keep_reward,
        base_url: str | None = None,
        token: str | None = None,
        options: RolloutConfig | None = None,
        say: Callable[[str], None] = lambda words: None,
        phase: Callable[[PhaseProgress], None] = lambda progress: None,
        stopping: Callable[[], str | None] = lambda: None,
    ) -> None:
        self.environments = environments
        self.phase = phase
        self.endpoints: dict[str, EnvironmentEndpoint] = {}
        self._limits, self._system_prompt = limits, system_prompt
        self._task = dict(task or {})
        self._scored = scored
        self._address = {"base_url": base_url, "token": token}
        self._options, self._say, self._stopping = options or RolloutConfig(), say, stopping
        self._pools: dict[str, SessionPool] = {}
        self._loop = asyncio.new_event_loop()
        self._thread = Thread(target=self._run_loop, name="ludus-stage", daemon=True)
        self._ended_by: BaseException | None = None

    def __enter__(self) -> Self:
        self._thread.start()
        try:
            self._run_sync(self._open())
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        if self._thread.is_alive():
            try:
                self._run_sync(self._close(), CLOSE_TIMEOUT_S)
            except TimeoutError:
                # Somebody holds the loop up; the thread ends with the process.
                return
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
        self._loop.close()

    @property
    def names(self) -> tuple[str, ...]:
        """What episodes call the environments."""
        return tuple(place.name for place in self.endpoints.values())

    def plan(self, run_id: str, *, seed: int, group_size: int) -> Plan:
        """Its tasks, without an end, each as often as a group has members."""
        return Plan(
            run_id=run_id,
            mixture=self.environments,
            seed=seed,
            group_size=group_size,
            task=self._task,
            names={spec: place.name for spec, place in self.endpoints.items()},
            variant_tasks={spec: place.variant_task for spec, place in self.endpoints.items()},
        )

    @property
    def stop_reason(self) -> str | None:
        """Why a wait for a server was ended before its time, if it was."""
        return self._monitor.stop_reason

    def rehearse(self, plan: Plan) -> None:
        """Begin a task everywhere: what cannot be is said before anything is trained."""
        tasks = 8 * len(self.endpoints)
        activities: dict[str, EpisodeStatus] = {}
        begun = preflight(plan, self.endpoints, tasks * plan.group_size, activities)
        self._run_sync(self._monitor.watch(begun, activities))

    def play(
        self, plan: Plan, indices: Sequence[int], phase: str = "Playing", *, in_log: bool = False
    ) -> list[Episode]:
        """These episodes of a plan, all at once; faults are tried again."""
        progress = RolloutProgress(
            phase, len(indices), limits=self._limits, in_log=in_log,
            count_tokens=lambda: self.agent.sampled_tokens,
        )  # fmt: skip
        self.phase(progress)
        return self._run_sync(self._play(plan, indices, progress))

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Anything else that belongs on its loop."""
        return self._run_sync(work)

    async def _play(
        self, plan: Plan, indices: Sequence[int], progress: RolloutProgress
    ) -> list[Episode]:
        attempts = EpisodeRunner(
            agent=self.agent,
            limits=self._limits,
            system_prompt=self._system_prompt,
            max_attempts=self._options.max_attempts,
            retry_delay=self._options.retry_delay,
            on_attempt=self._monitor.pulse.record_attempt,
        )

        async def one(index: int) -> Episode:
            episode = await attempts.run(plan[index], self._pools[plan.spec_of(index)])
            assert episode is not None  # Nobody ends the attempts before their time.
            scored = await self._scored(episode)
            progress.finish_episode(episode.usage.completion_tokens)
            return scored

        async def all_at_once() -> list[Episode]:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(one(index)) for index in indices]
            return [task.result() for task in tasks]

        return await self._monitor.watch(all_at_once(), attempts.statuses)

    async def _open(self) -> None:
        self.endpoints = await resolve_endpoints(self.environments, **self._address, warn=self._say)
        patience = self._options.reconnect_timeout
        self._pools = {
            spec: SessionPool(place.endpoint, reconnect_timeout=patience)
            for spec, place in self.endpoints.items()
        }
        self._monitor = RolloutMonitor(
            self._pools, LoopLagMonitor(instant_environments(self.endpoints.values()), self._say), self._say,
            self._stopping, self._options.stall_warning, self._excused,
        )  # fmt: skip

    def _excused(self) -> bool:
        return hasattr(self, "agent") and self.agent.stall_expected

    async def _close(self) -> None:
        await asyncio.gather(*(pool.close() for pool in self._pools.values()))
        if hasattr(self, "agent"):
            await self.agent.close()

    def _run_loop(self) -> None:
        try:
            self._loop.run_forever()
        except BaseException as error:
            self._ended_by = error

    def _run_sync(self, made: Coroutine[Any, Any, T], limit: float | None = None) -> T:
        """Wait for it here; whatever ends the wait ends it there too."""
        if not self._thread.is_alive():
            made.close()
            raise self._no_more()
        future = asyncio.run_coroutine_threadsafe(made, self._loop)
        try:
            self._wait(future, limit)
            return future.result()
        except BaseExceptionGroup as several:
            raise _first_leaf(several) from None
        except BaseException:
            future.cancel()
            raise

    def _wait(self, future: Future[Any], limit: float | None) -> None:
        """Until it is done, which is never if the thread has ended."""
        deadline = None if limit is None else monotonic() + limit
        while not wait([future], THREAD_POLL_S).done:
            if not self._thread.is_alive():
                raise self._no_more()
            if deadline is not None and monotonic() > deadline:
                raise TimeoutError

    def _no_more(self) -> RunError:
        words = describe_exception(self._ended_by) if self._ended_by else "somebody"
        return RunError(f"No more episodes can be played: {words} has ended their thread.")


def _first_leaf(error: BaseException) -> BaseException:
    """Of a group in which groups may be."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
