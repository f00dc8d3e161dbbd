"""A pool of sessions on one environment, opened on demand and reused."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from contextlib import suppress

from ludus.client.endpoint import Endpoint
from ludus.client.session import Session
from ludus.errors import CapacityReached, ConnectFailed, ExecutionFailed, SessionError

MIN_BACKOFF_S, MAX_BACKOFF_S = 0.1, 5.0
CAPACITY_RETRY_S = 30.0
"""Time after which a full server is asked for another session again."""
OUTAGE_RESET_S = 30.0
"""Time without a failed connection after which the next one begins a new outage."""


class SessionPool:
    """The sessions of one environment."""

    def __init__(self, endpoint: Endpoint, *, reconnect_timeout: float = 120.0) -> None:
        self.endpoint = endpoint
        self.reconnect_timeout = reconnect_timeout
        self.unreachable_since: float | None = None
        """Since when the server has not answered, while it does not."""
        self._last_failure_at = 0.0
        self._idle: deque[Session] = deque()
        self._num_open = 0
        self._num_opening = 0
        self._capacity: int | None = None
        """Maximum number of sessions, once the server has refused another one."""
        self._refused_at = 0.0
        self._released = asyncio.Event()

    async def acquire(self, *, open_timeout: float | None = None) -> Session:
        """An open session for one episode; return it with `release` or `discard`.

        `open_timeout` is for opening a session: waiting for one that is in use has no limit.
        """
        delay = MIN_BACKOFF_S
        while True:
            if self._idle:
                return self._idle.pop()
            requested_at = time.monotonic()
            if requested_at - self._refused_at > CAPACITY_RETRY_S:
                self._capacity = None
            limit = self.endpoint.max_sessions
            if (self._capacity is not None and self._num_open >= self._capacity) or (
                limit is not None and self._num_open + self._num_opening >= limit
            ):
                self._released.clear()
                await self._released.wait()
                continue
            try:
                async with asyncio.timeout(open_timeout):
                    return await self._open_session()
            except (CapacityReached, ConnectFailed) as error:
                if not await self._back_off(error, requested_at, delay):
                    raise
                delay = min(2 * delay, MAX_BACKOFF_S)

    def release(self, session: Session) -> None:
        """Return a session that the next episode may use."""
        self._idle.append(session)
        self.unreachable_since = None
        self._released.set()

    async def discard(self, session: Session) -> None:
        """Close a session whose state is unknown."""
        self._num_open -= 1
        self._released.set()
        await _close_quietly(session)

    async def close_idle(self) -> None:
        """Close all idle sessions."""
        idle = list(self._idle)
        self._idle.clear()
        await asyncio.gather(*(self.discard(session) for session in idle))

    async def _open_session(self) -> Session:
        session = self.endpoint.session()
        self._num_opening += 1
        try:
            await session.open()
            # A server reports only in its first reply whether it has accepted the session.
            with suppress(ExecutionFailed):  # Some have no state before the first reset.
                await session.state()
        except BaseException:
            self._released.set()
            await _close_quietly(session)
            raise
        finally:
            self._num_opening -= 1
        self._num_open += 1
        self.unreachable_since = None
        return session

    async def _back_off(self, error: SessionError, requested_at: float, delay: float) -> bool:
        """Wait before the next try; False once the server was unreachable for too long.

        The time counts for the whole pool: episodes that wait do not each wait in full.
        """
        now = time.monotonic()
        if isinstance(error, CapacityReached) and self._num_open:
            self._capacity, self._refused_at = self._num_open, now
            return True
        if self.unreachable_since is None or requested_at - self._last_failure_at > OUTAGE_RESET_S:
            self.unreachable_since = now
        self._last_failure_at = now
        if now - self.unreachable_since > self.reconnect_timeout:
            return False
        await asyncio.sleep(delay)
        return True


async def _close_quietly(session: Session) -> None:
    with suppress(SessionError, OSError, TimeoutError):
        async with asyncio.timeout(10.0):
            await session.close()
