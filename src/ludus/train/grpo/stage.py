"""Where a model under training plays: a thread with an event loop, and sessions that stay open.

Training is a program that waits; playing is many conversations at once. All episodes that are asked
for are under way together, on the loop that collecting and evaluating use. What is learned from
them is not its business.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from threading import Thread
from time import monotonic
from typing import Any, Self, TypeVar

from ludus.agents.agent import Agent
from ludus.data.episode import Episode
from ludus.environment.mix import Mix
from ludus.rollout.attempts import Attempts
from ludus.rollout.loop import Limits
from ludus.rollout.places import Place, find_places
from ludus.rollout.plan import Plan
from ludus.rollout.sessions import SessionPool
from ludus.rollout.start import rehearse
from ludus.rollout.tuning import Tuning
from ludus.rollout.watchdog import Watchdog

TICK = 0.25
SILENCE = 5.0
"""Seconds after which a server that does not answer is named."""
LEAVING = 15.0
"""Seconds that sessions get to be closed."""
Made = TypeVar("Made")
Scored = Callable[[Episode], Awaitable[Episode]]
"""Gives an episode its reward, where the environment's own is not all of it."""


async def _as_it_is(episode: Episode) -> Episode:
    return episode


class Stage:
    """Use it as a context manager; the agent may come later than the environments.

    Args:
        environments: what is played.
        limits: where an episode is cut off.
        task: arguments of reset for every episode.
        scored: asked for each episode as soon as it has ended.
        base_url: where a single environment is served, if not in this process.
        say: told of what hangs.
    """

    agent: Agent

    def __init__(
        self,
        environments: Mix,
        *,
        limits: Limits,
        system_prompt: str | None,
        task: Mapping[str, Any] | None = None,
        scored: Scored = _as_it_is,
        base_url: str | None = None,
        token: str | None = None,
        tuning: Tuning | None = None,
        say: Callable[[str], None] = lambda words: None,
    ) -> None:
        self.environments = environments
        self.places: dict[str, Place] = {}
        self._limits, self._system_prompt = limits, system_prompt
        self._task = dict(task or {})
        self._scored = scored
        self._address = {"base_url": base_url, "token": token}
        self._tuning, self._say = tuning or Tuning(), say
        self._pools: dict[str, SessionPool] = {}
        self._loop = asyncio.new_event_loop()
        self._thread = Thread(target=self._loop.run_forever, name="ludus-stage", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        try:
            self._await(self._open())
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        try:
            self._await(self._close(), LEAVING)
        except TimeoutError:
            # Somebody holds the loop up; the thread ends with the process.
            return
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    @property
    def names(self) -> tuple[str, ...]:
        """What episodes call the environments."""
        return tuple(place.name for place in self.places.values())

    def plan(self, run_id: str, *, seed: int, group_size: int) -> Plan:
        """Its tasks, without an end, each as often as a group has members."""
        return Plan(
            run_id=run_id,
            environments=self.environments,
            seed=seed,
            group_size=group_size,
            task=self._task,
            names={spec: place.name for spec, place in self.places.items()},
            variants={spec: place.variant_task for spec, place in self.places.items()},
        )

    def rehearse(self, plan: Plan) -> None:
        """Begin a task everywhere: what cannot be is said before anything is trained."""
        tasks = 8 * len(self.places)
        self._await(rehearse(plan, self.places, tasks * plan.group_size))

    def play(self, plan: Plan, indices: Sequence[int]) -> list[Episode]:
        """These episodes of a plan, all at once; faults are tried again."""
        return self._await(self._play(plan, indices))

    def run(self, made: Coroutine[Any, Any, Made]) -> Made:
        """Anything else that belongs on its loop."""
        return self._await(made)

    async def _play(self, plan: Plan, indices: Sequence[int]) -> list[Episode]:
        attempts = Attempts(self.agent, self._limits, self._system_prompt, self._tuning)

        async def one(index: int) -> Episode:
            episode = await attempts.episode(plan[index], self._pools[plan.spec_of(index)])
            assert episode is not None  # Nobody ends the attempts before their time.
            return await self._scored(episode)

        patience = self._tuning.hang_warning
        with Watchdog(attempts.activities, self._say, patience=patience) as dog:
            beating = asyncio.create_task(self._beat(dog))
            try:
                async with asyncio.TaskGroup() as group:
                    tasks = [group.create_task(one(index)) for index in indices]
            finally:
                beating.cancel()
        return [task.result() for task in tasks]

    async def _beat(self, dog: Watchdog) -> None:
        """Say that the loop is alive, and who does not answer, each of them once."""
        told: set[str] = set()
        while True:
            dog.beat()
            for spec, pool in self._pools.items():
                since = pool.waiting_since
                if since is not None and spec not in told and monotonic() - since > SILENCE:
                    told.add(spec)
                    self._say(f"Nobody answers at {spec}; waiting for it")
            await asyncio.sleep(TICK)

    async def _open(self) -> None:
        self.places = await find_places(self.environments, **self._address)
        patience = self._tuning.patience
        self._pools = {
            spec: SessionPool(place.endpoint, patience=patience)
            for spec, place in self.places.items()
        }

    async def _close(self) -> None:
        await asyncio.gather(*(pool.close() for pool in self._pools.values()))
        if hasattr(self, "agent"):
            await self.agent.close()

    def _await(self, made: Coroutine[Any, Any, Made], limit: float | None = None) -> Made:
        """Wait for it here; whatever ends the wait ends it there too."""
        future = asyncio.run_coroutine_threadsafe(made, self._loop)
        try:
            return future.result(limit)
        except ExceptionGroup as several:
            raise several.exceptions[0] from None
        except BaseException:
            future.cancel()
            raise
