"""Progress and stall reporting during rollouts.

It speaks and may end the work; what is played is `ludus.train.grpo.stage`'s business.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from time import monotonic
from typing import Any, TypeVar

from ludus.errors import RunError
from ludus.rollout.activity import EpisodeStatus
from ludus.rollout.pulse import LoopLagMonitor
from ludus.rollout.sessions import SessionPool
from ludus.rollout.watchdog import Watchdog

TICK = 0.25
SILENCE = 5.0
"""Seconds after which a server that does not answer is named."""
Made = TypeVar("Made")


@dataclass(slots=True)
class Vigil:
    """Over the sessions of one stage."""

    pools: Mapping[str, SessionPool]
    pulse: LoopLagMonitor
    say: Callable[[str], None]
    stopping: Callable[[], str | None]
    """Why to stop, once somebody wants that; asked while a server is waited for."""
    patience: float
    """Seconds after which what hangs is named."""
    excused: Callable[[], bool] = lambda: False
    """Whether the model is at work, however long it takes."""
    left: str | None = None
    """Why a wait for a server was ended before its time, if it was."""
    _told: set[str] = field(default_factory=set)

    async def over(
        self, work: Coroutine[Any, Any, Made], activities: Mapping[str, EpisodeStatus]
    ) -> Made:
        """Do the work."""
        self._told.clear()
        dog = Watchdog(activities, self.say, timeout=self.patience, model_excused=self.excused)
        with dog:
            async with asyncio.TaskGroup() as group:
                beating = group.create_task(self._beat(dog, activities))
                made = await work
                beating.cancel()
        return made

    async def _beat(self, dog: Watchdog, activities: Mapping[str, EpisodeStatus]) -> None:
        while True:
            dog.heartbeat()
            self._name_the_silent()
            due = monotonic() + TICK
            await asyncio.sleep(TICK)
            self.pulse.record_tick(monotonic() - due, activities.values())

    def _name_the_silent(self) -> None:
        """Each of them once."""
        for spec, pool in self.pools.items():
            if pool.unreachable_since is None:
                continue
            self._leave_if_told(spec)
            if spec not in self._told and monotonic() - pool.unreachable_since > SILENCE:
                self._told.add(spec)
                self.say(f"Nobody answers at {spec}; waiting for it")

    def _leave_if_told(self, spec: str) -> None:
        """Nothing is learned while episodes are played, so nothing is lost with a step of them."""
        self.left = self.stopping()
        if self.left is not None:
            raise RunError(
                f"Nobody answers at {spec}, and the run was {self.left} while it waited. The same "
                "command goes on from the step before."
            )
