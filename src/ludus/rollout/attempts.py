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
from ludus.rollout.activity import Activity
from ludus.rollout.breaker import LASTING
from ludus.rollout.loop import Limits, fault_of, overdue, play, recorded
from ludus.rollout.plan import Assignment
from ludus.rollout.sessions import SessionPool
from ludus.rollout.tuning import Tuning


@dataclass(slots=True)
class Attempts:
    """How episodes are tried, by one agent within the same limits."""

    agent: Agent
    limits: Limits
    system_prompt: str | None
    tuning: Tuning
    activities: dict[str, Activity] = field(default_factory=dict)
    """What each episode under way is doing, by its id."""
    attempted: Callable[[Episode], None] = lambda episode: None
    """Told of every attempt, whatever became of it."""
    ending: asyncio.Event = field(default_factory=asyncio.Event)
    """Set: nothing is tried again."""

    async def episode(self, assignment: Assignment, pool: SessionPool) -> Episode | None:
        """Play it until it is not the infrastructure that ends it; None: left for another time."""
        try:
            return await self._tried(assignment, pool)
        finally:
            self.activities.pop(assignment.episode_id, None)

    async def _tried(self, assignment: Assignment, pool: SessionPool) -> Episode | None:
        spent = Usage()
        for attempt in range(1, self.tuning.attempts + 1):
            episode = await self._attempt(assignment, pool, attempt)
            self.attempted(episode)
            spent += episode.usage
            if episode.error is None or episode.error.kind in LASTING:
                break
            if attempt < self.tuning.attempts:
                pause = self.tuning.retry_pause * 2 ** (attempt - 1)
                await wait(self.ending, pause * random.uniform(0.5, 1.5))
                if self.ending.is_set():
                    return None
        # What broken attempts have cost was paid for this episode too.
        return episode if attempt == 1 else episode.model_copy(update={"usage": spent})

    async def _attempt(self, assignment: Assignment, pool: SessionPool, attempt: int) -> Episode:
        activity = Activity(assignment.episode_id, assignment.environment)
        self.activities[assignment.episode_id] = activity
        limits, started_at = self.limits, datetime.now(UTC)
        try:
            with activity.doing("environment", f"a session of {pool.endpoint.spec}"):
                async with asyncio.timeout(limits.episode_timeout):
                    session = await pool.take()
        except Exception as error:
            late = isinstance(error, TimeoutError)
            return recorded(
                assignment,
                self.agent,
                limits,
                attempt=attempt,
                stop_reason=StopReason.DEADLINE if late else StopReason.BROKEN,
                error=overdue(activity, limits) if late else fault_of(error, activity),
                started_at=started_at,
                activity=activity,
            )
        try:
            episode = await play(
                session,
                self.agent,
                assignment,
                limits=limits,
                system_prompt=self.system_prompt,
                attempt=attempt,
                activity=activity,
            )
        except BaseException:
            await pool.drop(session)
            raise
        await _give_back(session, pool, episode)
        return episode


async def _give_back(session: Session, pool: SessionPool, episode: Episode) -> None:
    if episode.error is None or episode.error.where == "model":
        pool.keep(session)
        return
    await pool.drop(session)
    if episode.error.kind == SessionLost.__name__:
        await pool.drop_idle()


async def wait(event: asyncio.Event, seconds: float) -> None:
    """Until the event, but no longer than so many seconds."""
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()
