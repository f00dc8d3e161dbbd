"""Open sessions, kept from one episode to the next.

A server that is full sets the number, and one that is gone is waited for: neither costs an episode
one of its attempts.
"""

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
"""Seconds after which a server that was full is asked for more again."""
OUTAGE_RESET_S = 30.0
"""Seconds in which nobody asks, after which the next wait is another one."""


class SessionPool:
    """The sessions of one environment."""

    def __init__(self, endpoint: Endpoint, *, reconnect_timeout: float = 120.0) -> None:
        self.endpoint = endpoint
        self.reconnect_timeout = reconnect_timeout
        self.unreachable_since: float | None = None
        """Since when nobody has answered, if so."""
        self._last_failure_at = 0.0
        self._idle: deque[Session] = deque()
        self._num_open = 0
        self._capacity: int | None = None
        """As many as the server takes, once it has said so."""
        self._refused_at = 0.0
        self._released = asyncio.Event()

    async def acquire(self) -> Session:
        """A session for one episode; give it back with `keep` or `drop`."""
        pause = MIN_BACKOFF_S
        while True:
            if self._idle:
                return self._idle.pop()
            if self._is_full():
                await self._wait_for_release()
                continue
            asked_at = time.monotonic()
            try:
                return await self._open_session()
            except (CapacityReached, ConnectFailed) as error:
                if not await self._back_off(error, asked_at, pause):
                    raise
                pause = min(2 * pause, MAX_BACKOFF_S)

    def release(self, session: Session) -> None:
        """The episode went well: the next one may use the session."""
        self._idle.append(session)
        self.unreachable_since = None
        self._released.set()

    async def discard(self, session: Session) -> None:
        """The session may be in any state: close it."""
        self._num_open -= 1
        self._released.set()
        await _close_quietly(session)

    async def discard_idle(self) -> None:
        """A session was lost, so those that were waiting are probably lost too."""
        idle = list(self._idle)
        self._idle.clear()
        await asyncio.gather(*(self.discard(session) for session in idle))

    async def close(self) -> None:
        idle = list(self._idle)
        self._idle.clear()
        await asyncio.gather(*(_close_quietly(session) for session in idle))

    async def _open_session(self) -> Session:
        session = self.endpoint.session()
        try:
            await session.open()
            await _confirm_admission(session)
        except BaseException:
            await _close_quietly(session)
            raise
        self._num_open += 1
        self.unreachable_since = None
        return session

    async def _back_off(self, error: SessionError, asked_at: float, pause: float) -> bool:
        """Wait, unless that has been tried for long enough: by all together, and not by each."""
        full, now = isinstance(error, CapacityReached), time.monotonic()
        if full and self._num_open:
            self._capacity, self._refused_at = self._num_open, now
            return True
        if self.unreachable_since is None or asked_at - self._last_failure_at > OUTAGE_RESET_S:
            self.unreachable_since = now
        self._last_failure_at = now
        if now - self.unreachable_since > self.reconnect_timeout:
            return False
        await asyncio.sleep(pause)
        return True

    def _is_full(self) -> bool:
        if self._capacity is None:
            return False
        if time.monotonic() - self._refused_at > CAPACITY_RETRY_S:
            self._capacity = None
            return False
        return self._num_open >= self._capacity

    async def _wait_for_release(self) -> None:
        self._released.clear()
        await self._released.wait()


async def _confirm_admission(session: Session) -> None:
    """A server tells only in its first reply whether it has taken the session at all."""
    with suppress(ExecutionFailed):  # It answers, with nothing to tell before the first reset.
        await session.state()


async def _close_quietly(session: Session) -> None:
    try:
        async with asyncio.timeout(10.0):
            await session.close()
    except (SessionError, OSError, TimeoutError):
        pass  # It is given up in any case.
