"""One episode with its retries: acquire a session, play, and try again after a fault."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from ludus.agents.agent import Agent
from ludus.data.episode import Episode, StopReason, Usage
from ludus.errors import SessionLost
from ludus.rollout.circuit_breaker import PERMANENT_FAULTS
from ludus.rollout.episode_record import build_episode_record, deadline_fault, fault_from_exception
from ludus.rollout.loop import EpisodeLimits, describe_agent, run_episode
from ludus.rollout.monitoring import EpisodeStatus
from ludus.rollout.plan import Assignment
from ludus.rollout.session_pool import SessionPool

if TYPE_CHECKING:
    from ludus.rollout.episode_workers import EpisodeWorkers


@dataclass(slots=True, kw_only=True)
class EpisodeRunner:
    """Runs episodes of one agent under the same limits, and retries those that break."""

    agent: Agent
    limits: EpisodeLimits
    system_prompt: str | None
    max_attempts: int = 3
    retry_delay: float = 1.0
    """Seconds before the second attempt; doubled for each further one."""
    statuses: dict[str, EpisodeStatus] = field(default_factory=dict)
    """What each active episode is doing, by episode id."""
    on_attempt: Callable[[Episode], None] = lambda episode: None
    """Called with the result of every attempt, broken ones included."""
    stopping: asyncio.Event = field(default_factory=asyncio.Event)
    """Once set, no further attempt is started."""
    workers: EpisodeWorkers | None = None
    """Processes, here or on other machines, that play the attempts instead of this one."""

    async def run(self, assignment: Assignment, pool: SessionPool) -> Episode | None:
        """Play an episode until an attempt ends without a fault that a retry may solve.

        Returns None where `stopping` was set before the next attempt.
        """
        usage = Usage()
        try:
            for attempt in range(1, self.max_attempts + 1):
                episode = await self.run_attempt(assignment, pool, attempt)
                self.on_attempt(episode)
                usage += episode.usage
                if episode.error is None or episode.error.kind in PERMANENT_FAULTS:
                    break
                if attempt < self.max_attempts:
                    delay = self.retry_delay * 2 ** (attempt - 1)
                    with suppress(TimeoutError):
                        async with asyncio.timeout(delay * random.uniform(0.5, 1.5)):
                            await self.stopping.wait()
                    if self.stopping.is_set():
                        return None
        finally:
            self.statuses.pop(assignment.episode_id, None)
        # The usage of the broken attempts was paid for this episode too.
        return episode if attempt == 1 else episode.model_copy(update={"usage": usage})

    async def run_attempt(self, assignment: Assignment, pool: SessionPool, attempt: int) -> Episode:
        """Play an episode once. A failure is recorded in the episode's `error`."""
        status = EpisodeStatus(assignment.episode_id, assignment.environment)
        self.statuses[assignment.episode_id] = status
        limits, started_at = self.limits, datetime.now(UTC)
        try:
            if self.workers is not None:
                with status.track("environment", "a worker"):
                    return await self.workers.run((assignment, attempt))
            with status.track("environment", f"a session of {pool.endpoint.spec}"):
                session = await pool.acquire(open_timeout=limits.episode_timeout)
        except Exception as error:
            late = isinstance(error, TimeoutError)
            return build_episode_record(
                assignment,
                agent=describe_agent(self.agent, limits),
                attempt=attempt,
                stop_reason=StopReason.DEADLINE if late else StopReason.BROKEN,
                error=deadline_fault(status, limits.episode_timeout)
                if late
                else fault_from_exception(error, status),
                started_at=started_at,
                status=status,
            )
        try:
            episode = await run_episode(
                session,
                self.agent,
                assignment,
                limits=limits,
                system_prompt=self.system_prompt,
                attempt=attempt,
                status=status,
            )
        except BaseException:
            await pool.discard(session)
            raise
        if episode.error is None or episode.error.where == "model":
            pool.release(session)
        else:
            await pool.discard(session)
            if episode.error.kind == SessionLost.__name__:
                # The server is probably gone, and the idle sessions with it.
                await pool.discard_idle()
        return episode
