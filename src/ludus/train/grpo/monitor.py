"""Progress and stall reporting during rollouts."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from time import monotonic
from typing import Any, TypeVar

from ludus.errors import RunError
from ludus.rollout.endpoints import SessionPool
from ludus.rollout.progress import EpisodeStatus, Watchdog

TICK_S = 0.25
UNREACHABLE_WARNING_S = 5.0
"""Seconds after which an unreachable server is reported."""
T = TypeVar("T")


@dataclass(slots=True)
class RolloutMonitor:
    """Watches rollouts: reports what hangs, and gives up on unreachable servers on request."""

    pools: Mapping[str, SessionPool]
    say: Callable[[str], None]
    stop_requested: Callable[[], str | None]
    """Returns why to stop, if so; asked while a server is unreachable."""
    stall_warning_s: float
    """Seconds after which an episode that does not progress is reported."""
    model_is_busy: Callable[[], bool] = lambda: False
    """Whether the model is computing: episodes that wait for it do not hang."""
    stop_reason: str | None = None
    """Why waiting for an unreachable server was given up, if it was."""
    _reported: set[str] = field(default_factory=set)

    async def watch(
        self, coroutine: Coroutine[Any, Any, T], statuses: Mapping[str, EpisodeStatus]
    ) -> T:
        """Await the coroutine while watching its episodes."""
        self._reported.clear()
        watchdog = Watchdog(
            statuses, self.say, timeout=self.stall_warning_s, model_excused=self.model_is_busy
        )

        async def tick_forever() -> None:
            while True:
                watchdog.heartbeat()
                self._check_servers()
                await asyncio.sleep(TICK_S)

        with watchdog:
            async with asyncio.TaskGroup() as group:
                ticking = group.create_task(tick_forever())
                result = await coroutine
                ticking.cancel()
        return result

    def _check_servers(self) -> None:
        """Report each unreachable server once per rollout, and stop if that is requested.

        Stopping in the middle of a step loses nothing: no weights change during rollouts.
        """
        for spec, pool in self.pools.items():
            if pool.unreachable_since is None:
                continue
            self.stop_reason = self.stop_requested()
            if self.stop_reason is not None:
                raise RunError(
                    f"{spec} is unreachable, and the run was {self.stop_reason} while waiting for "
                    "it. The same command resumes from the step before."
                )
            silent_s = monotonic() - pool.unreachable_since
            if spec not in self._reported and silent_s > UNREACHABLE_WARNING_S:
                self._reported.add(spec)
                self.say(f"{spec} is unreachable; waiting for it")
