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

FIRST_PAUSE, LONGEST_PAUSE = 0.1, 5.0
ASK_AGAIN = 30.0
"""Seconds after which a server that was full is asked for more again."""
BREAK = 30.0
"""Seconds in which nobody asks, after which the next wait is another one."""


class SessionPool:
    """The sessions of one environment."""

    def __init__(self, endpoint: Endpoint, *, patience: float = 120.0) -> None:
        self.endpoint = endpoint
        self.patience = patience
        self.waiting_since: float | None = None
        """Since when nobody has answered, if so."""
        self._missed_at = 0.0
        self._idle: deque[Session] = deque()
        self._open = 0
        self._room: int | None = None
        """As many as the server takes, once it has said so."""
        self._refused_at = 0.0
        self._freed = asyncio.Event()

    async def take(self) -> Session:
        """A session for one episode; give it back with `keep` or `drop`."""
        pause = FIRST_PAUSE
        while True:
            if self._idle:
                return self._idle.pop()
            if self._full():
                await self._somebody_leaves()
                continue
            asked_at = time.monotonic()
            try:
                return await self._opened()
            except (CapacityReached, ConnectFailed) as error:
                if not await self._worth_waiting(error, asked_at, pause):
                    raise
                pause = min(2 * pause, LONGEST_PAUSE)

    def keep(self, session: Session) -> None:
        """The episode went well: the next one may use the session."""
        self._idle.append(session)
        self.waiting_since = None
        self._freed.set()

    async def drop(self, session: Session) -> None:
        """The session may be in any state: close it."""
        self._open -= 1
        self._freed.set()
        await _shut(session)

    async def drop_idle(self) -> None:
        """A session was lost, so those that were waiting are probably lost too."""
        idle = list(self._idle)
        self._idle.clear()
        await asyncio.gather(*(self.drop(session) for session in idle))

    async def close(self) -> None:
        idle = list(self._idle)
        self._idle.clear()
        await asyncio.gather(*(_shut(session) for session in idle))

    async def _opened(self) -> Session:
        session = self.endpoint.session()
        try:
            await session.open()
            await _admitted(session)
        except BaseException:
            await _shut(session)
            raise
        self._open += 1
        self.waiting_since = None
        return session

    async def _worth_waiting(self, error: SessionError, asked_at: float, pause: float) -> bool:
        """Wait, unless that has been tried for long enough: by all together, and not by each."""
        full, now = isinstance(error, CapacityReached), time.monotonic()
        if full and self._open:
            self._room, self._refused_at = self._open, now
            return True
        if self.waiting_since is None or asked_at - self._missed_at > BREAK:
            self.waiting_since = now
        self._missed_at = now
        if now - self.waiting_since > self.patience:
            return False
        await asyncio.sleep(pause)
        return True

    def _full(self) -> bool:
        if self._room is None:
            return False
        if time.monotonic() - self._refused_at > ASK_AGAIN:
            self._room = None
            return False
        return self._open >= self._room

    async def _somebody_leaves(self) -> None:
        self._freed.clear()
        await self._freed.wait()


async def _admitted(session: Session) -> None:
    """A server tells only in its first reply whether it has taken the session at all."""
    with suppress(ExecutionFailed):  # It answers, with nothing to tell before the first reset.
        await session.state()


async def _shut(session: Session) -> None:
    try:
        async with asyncio.timeout(10.0):
            await session.close()
    except (SessionError, OSError, TimeoutError):
        pass  # It is given up in any case.
