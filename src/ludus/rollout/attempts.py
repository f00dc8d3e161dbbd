"""An episode with all its attempts: a session is taken, the loop plays, faults are tried again.

Which episodes there are and what becomes of them is the business of whoever calls: the collector
writes them down, training learns from them.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime

from ludus.agents.agent import Agent
from ludus.client.session import Session
from ludus.data.episode import Episode, StopReason, Usage
from ludus.errors import SessionLost
from ludus.rollout.circuit_breaker import PERMANENT_FAULTS
from ludus.rollout.episode_status import EpisodeStatus
from ludus.rollout.loop import (
    EpisodeLimits,
    build_episode,
    deadline_fault,
    fault_from_exception,
    run_episode,
)
from ludus.rollout.options import RolloutOptions
from ludus.rollout.plan import Assignment
from ludus.rollout.session_pool import SessionPool


@dataclass(slots=True)
class EpisodeRunner:
    """How episodes are tried, by one agent within the same limits."""

    agent: Agent
    limits: EpisodeLimits
    system_prompt: str | None
    options: RolloutOptions
    statuses: dict[str, EpisodeStatus] = field(default_factory=dict)
    """What each episode under way is doing, by its id."""
    on_attempt: Callable[[Episode], None] = lambda episode: None
    """Told of every attempt, whatever became of it."""
    stopping: asyncio.Event = field(default_factory=asyncio.Event)
    """Set: nothing is tried again."""

    async def run(self, assignment: Assignment, pool: SessionPool) -> Episode | None:
        """Play it until it is not the infrastructure that ends it; None: left for another time."""
        try:
            return await self._run_with_retries(assignment, pool)
        finally:
            self.statuses.pop(assignment.episode_id, None)

    async def _run_with_retries(self, assignment: Assignment, pool: SessionPool) -> Episode | None:
        spent = Usage()
        for attempt in range(1, self.options.max_attempts + 1):
            episode = await self._run_attempt(assignment, pool, attempt)
            self.on_attempt(episode)
            spent += episode.usage
            if episode.error is None or episode.error.kind in PERMANENT_FAULTS:
                break
            if attempt < self.options.max_attempts:
                pause = self.options.retry_delay * 2 ** (attempt - 1)
                await wait_for_event(self.stopping, pause * random.uniform(0.5, 1.5))
                if self.stopping.is_set():
                    return None
        # What broken attempts have cost was paid for this episode too.
        return episode if attempt == 1 else episode.model_copy(update={"usage": spent})

    async def _run_attempt(
        self, assignment: Assignment, pool: SessionPool, attempt: int
    ) -> Episode:
        activity = EpisodeStatus(assignment.episode_id, assignment.environment)
        self.statuses[assignment.episode_id] = activity
        limits, started_at = self.limits, datetime.now(UTC)
        try:
            with activity.track("environment", f"a session of {pool.endpoint.spec}"):
                async with asyncio.timeout(limits.episode_timeout):
                    session = await pool.acquire()
        except Exception as error:
            late = isinstance(error, TimeoutError)
            return build_episode(
                assignment,
                self.agent,
                limits,
                attempt=attempt,
                stop_reason=StopReason.DEADLINE if late else StopReason.BROKEN,
                error=deadline_fault(activity, limits)
                if late
                else fault_from_exception(error, activity),
                started_at=started_at,
                status=activity,
            )
        try:
            episode = await run_episode(
                session,
                self.agent,
                assignment,
                limits=limits,
                system_prompt=self.system_prompt,
                attempt=attempt,
                status=activity,
            )
        except BaseException:
            await pool.discard(session)
            raise
        await _return_session(session, pool, episode)
        return episode


async def _return_session(session: Session, pool: SessionPool, episode: Episode) -> None:
    if episode.error is None or episode.error.where == "model":
        pool.release(session)
        return
    await pool.discard(session)
    if episode.error.kind == SessionLost.__name__:
        await pool.discard_idle()


async def wait_for_event(event: asyncio.Event, seconds: float) -> None:
    """Until the event, but no longer than so many seconds."""
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()
