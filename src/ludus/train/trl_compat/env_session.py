"""One environment session for TRL's loop, and the state of its current episode.

The rules are those of `ludus.rollout.loop`: every call gets a reply, an episode that a fault ended
has no reward, and no call runs after the end of the episode.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from ludus.client.session import Session
from ludus.data.episode import Fault
from ludus.data.messages import Content
from ludus.data.tool_schema import JsonObject, ToolSpec
from ludus.errors import (
    ConnectFailed,
    RequestTimeout,
    SessionError,
    SessionLost,
    StepTimeout,
)
from ludus.protocol.types import StepResult
from ludus.rollout.endpoints import EnvironmentEndpoint
from ludus.rollout.loop import NOT_RUN_MESSAGE, RewardSum

CONNECTION_ERRORS = (ConnectFailed, SessionLost, RequestTimeout, StepTimeout)
"""Errors after which a new session may work."""
RECONNECT_INTERVAL_S = 0.5
_CLOSE_TIMEOUT_S = 10.0


@dataclass(slots=True)
class EpisodeState:
    """The current episode of a session."""

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
        """The reward so far; None after a fault."""
        return self.score.total if self.fault is None else None

    def record(self, result: StepResult[dict[str, Any]]) -> Content:
        """Add a result to the score; return what the model is shown of it."""
        self.score.add(result)
        return result.content


class EnvSession:
    """Keeps a session across episodes, and opens a new one when it is lost."""

    def __init__(self, endpoint: EnvironmentEndpoint, *, reconnect_timeout: float = 60.0) -> None:
        self.endpoint = endpoint
        self.reconnect_timeout = reconnect_timeout
        self.state = EpisodeState()
        self.tools: tuple[ToolSpec, ...] = ()
        self._session: Session | None = None
        self._has_reset = False
        """Whether a reset has succeeded: from then on a failing one is the fault of its task."""

    async def open(self) -> None:
        """Open the session now, instead of at the first episode."""
        await self._ensure_session()

    async def start_episode(self, task: JsonObject) -> Content:
        """Reset the environment; return the first observation.

        Waits up to `reconnect_timeout` for a server that is gone. Raises if it does not come back,
        and if the very first reset fails, because then no task can be played.
        """
        self.state = state = EpisodeState(task)
        start = time.monotonic()
        try:
            observation = state.record(await self._reset_with_reconnect(task))
        except CONNECTION_ERRORS:
            raise
        except Exception as error:
            if not self._has_reset:
                raise
            return await self.fail_episode(error)
        finally:
            state.environment_s += time.monotonic() - start
        self._has_reset = True
        return observation

    async def call(self, tool: str, arguments: Mapping[str, Any]) -> Content:
        """Run a tool call of the model and return the reply; never raises."""
        state = self.state
        if state.is_over or self._session is None:
            return NOT_RUN_MESSAGE
        start = time.monotonic()
        try:
            return state.record(await self._session.call(tool, arguments))
        except Exception as error:
            return await self.fail_episode(error)
        finally:
            state.environment_s += time.monotonic() - start

    async def fail_episode(self, error: Exception) -> str:
        """Mark the episode as broken and drop the session, whose state is unknown."""
        message = str(error) or repr(error)
        self.state.fault = Fault(kind=type(error).__name__, where="environment", message=message)
        await self.close()
        return f"Error: The environment broke, so that this episode is not scored: {message}"

    async def close(self) -> None:
        """Close the session. May be called twice."""
        session, self._session = self._session, None
        if session is not None:
            with suppress(SessionError, OSError, TimeoutError):
                async with asyncio.timeout(_CLOSE_TIMEOUT_S):
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
