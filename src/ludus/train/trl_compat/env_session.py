"""A seat: one session of an environment, and how its episode stands.

The rules are those of `ludus.rollout.loop`: each call gets a reply, what breaks is nobody's score,
and after the end nothing is run. Who decides about the calls is not a seat's business.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from ludus.client.session import Session, StepResult
from ludus.data.content import Content
from ludus.data.episode import Fault
from ludus.data.tool_schema import JsonObject, ToolSpec
from ludus.errors import (
    ConnectFailed,
    RequestTimeout,
    SessionError,
    SessionLost,
    StepTimeout,
)
from ludus.rollout.endpoints import EnvironmentEndpoint
from ludus.rollout.loop import NOT_RUN_MESSAGE
from ludus.rollout.reward_sum import RewardSum

CONNECTION_ERRORS = (ConnectFailed, SessionLost, RequestTimeout, StepTimeout)
"""What another session may not suffer from."""
RECONNECT_INTERVAL_S = 0.5


@dataclass(slots=True)
class EpisodeState:
    """An episode so far."""

    task: JsonObject = field(default_factory=dict)
    started_at: datetime = field(default_factory=lambda: datetime.now(UTC))
    score: RewardSum = field(default_factory=RewardSum)
    environment_s: float = 0.0
    fault: Fault | None = None

    @property
    def is_over(self) -> bool:
        return self.score.done or self.fault is not None

    @property
    def reward(self) -> float | None:
        """What a fault ended has none."""
        return self.score.total if self.fault is None else None

    def record(self, result: StepResult[dict[str, Any]]) -> Content:
        """Take in what the environment gave; what the model is shown of it."""
        self.score.add(result)
        return result.content


class EnvSession:
    """Keeps a session from one episode to the next, and gets another when it is lost."""

    def __init__(self, endpoint: EnvironmentEndpoint, *, reconnect_timeout: float = 60.0) -> None:
        self.endpoint = endpoint
        self.reconnect_timeout = reconnect_timeout
        self.state = EpisodeState()
        self.tools: tuple[ToolSpec, ...] = ()
        self._session: Session | None = None
        self._has_reset = False
        """Whether a reset has gone well: then one that does not is that task's fault."""

    async def open(self) -> None:
        """Get a session now rather than with the first episode."""
        await self._ensure_session()

    async def start_episode(self, task: JsonObject) -> Content:
        """Begin an episode; what the model is shown first.

        A server that is gone is waited for. Where none comes back, or where no task can be begun
        at all, that is raised: a run that trains on nothing should end.
        """
        self.state = standing = EpisodeState(task)
        began = time.monotonic()
        try:
            shown = standing.record(await self._reset_with_reconnect(task))
        except CONNECTION_ERRORS:
            raise
        except Exception as error:
            if not self._has_reset:
                raise
            return await self.fail_episode(error)
        finally:
            standing.environment_s += time.monotonic() - began
        self._has_reset = True
        return shown

    async def call(self, tool: str, arguments: Mapping[str, Any]) -> Content:
        """Run one of the model's calls; whatever becomes of it, there is something to show."""
        standing = self.state
        if standing.is_over or self._session is None:
            return NOT_RUN_MESSAGE
        began = time.monotonic()
        try:
            return standing.record(await self._session.call(tool, arguments))
        except Exception as error:
            return await self.fail_episode(error)
        finally:
            standing.environment_s += time.monotonic() - began

    async def fail_episode(self, error: Exception) -> str:
        """The episode is nobody's score from here on, and the session of an unknown state."""
        message = str(error) or repr(error)
        self.state.fault = Fault(kind=type(error).__name__, where="environment", message=message)
        await self.close()
        return f"Error: The environment broke, so that this episode is not scored: {message}"

    async def close(self) -> None:
        """Give the session back. May be called twice."""
        session, self._session = self._session, None
        if session is not None:
            with suppress(SessionError, OSError, TimeoutError):
                async with asyncio.timeout(10.0):
                    await session.close()

    async def _reset_with_reconnect(self, task: JsonObject) -> StepResult[dict[str, Any]]:
        deadline = time.monotonic() + self.reconnect_timeout
        while True:
            try:
                return await (await self._ensure_session()).reset(**task)
            except CONNECTION_ERRORS:
                await self.close()
                if time.monotonic() > deadline:
                    raise
                await asyncio.sleep(RECONNECT_INTERVAL_S)

    async def _ensure_session(self) -> Session:
        if self._session is None:
            session = self.endpoint.endpoint.session()
            await session.open()
            self._session, self.tools = session, tuple(session.tools)
        return self._session
