"""Progress and stall reporting during rollouts.

It speaks and may end the work; what is played is `ludus.train.grpo.rollout_worker`'s business.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from time import monotonic
from typing import Any, TypeVar

from ludus.errors import RunError
from ludus.rollout.monitoring import EpisodeStatus, LoopLagMonitor, Watchdog
from ludus.rollout.session_pool import SessionPool

TICK_S = 0.25
SILENCE_WARNING_S = 5.0
"""Seconds after which a server that does not answer is named."""
T = TypeVar("T")


@dataclass(slots=True)
class RolloutMonitor:
    """Over the sessions of one stage."""

    pools: Mapping[str, SessionPool]
    pulse: LoopLagMonitor
    say: Callable[[str], None]
    stopping: Callable[[], str | None]
    """Why to stop, once somebody wants that; asked while a server is waited for."""
    stall_timeout_s: float
    """Seconds after which what hangs is named."""
    model_is_busy: Callable[[], bool] = lambda: False
    """Whether the model is at work, however long it takes."""
    stop_reason: str | None = None
    """Why a wait for a server was ended before its time, if it was."""
    _reported: set[str] = field(default_factory=set)

    async def watch(
        self, work: Coroutine[Any, Any, T], activities: Mapping[str, EpisodeStatus]
    ) -> T:
        """Do the work."""
        self._reported.clear()
        dog = Watchdog(
            activities, self.say, timeout=self.stall_timeout_s, model_excused=self.model_is_busy
        )
        with dog:
            async with asyncio.TaskGroup() as group:
                beating = group.create_task(self._tick(dog, activities))
                made = await work
                beating.cancel()
        return made

    async def _tick(self, dog: Watchdog, activities: Mapping[str, EpisodeStatus]) -> None:
        while True:
            dog.heartbeat()
            self._report_silent_servers()
            due = monotonic() + TICK_S
            await asyncio.sleep(TICK_S)
            self.pulse.record_tick(monotonic() - due, activities.values())

    def _report_silent_servers(self) -> None:
        """Each of them once."""
        for spec, pool in self.pools.items():
            if pool.unreachable_since is None:
                continue
            self._stop_if_requested(spec)
            if (
                spec not in self._reported
                and monotonic() - pool.unreachable_since > SILENCE_WARNING_S
            ):
                self._reported.add(spec)
                self.say(f"Nobody answers at {spec}; waiting for it")

    def _stop_if_requested(self, spec: str) -> None:
        """Nothing is learned while episodes are played, so nothing is lost with a step of them."""
        self.stop_reason = self.stopping()
        if self.stop_reason is not None:
            raise RunError(
                f"Nobody answers at {spec}, and the run was {self.stop_reason} while it waited. The same "
                "command goes on from the step before."
            )
