"""The limit of concurrent sessions over all workers, and the queue for the next free one."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import MutableSequence
from contextlib import AbstractContextManager, nullcontext

from ludus.errors import CapacityReached

_POLL_INTERVAL_S = 0.1
"""Interval at which sessions that another worker may have released are looked for."""


class SessionCapacity:
    """A counting semaphore with a queue.

    Args:
        held: The sessions of each worker, which are shared by all of them.
        lock: Held while `held` is checked and changed.
    """

    def __init__(
        self,
        max_sessions: int,
        *,
        held: MutableSequence[int] | None = None,
        lock: AbstractContextManager[object] | None = None,
        worker: int = 0,
    ) -> None:
        self.max_sessions = max_sessions
        self._held = [0] if held is None else held
        self._lock = lock or nullcontext()
        self._worker = worker
        self._queue: deque[asyncio.Future[None]] = deque()
        self._timer: asyncio.TimerHandle | None = None

    @property
    def in_use(self) -> int:
        return sum(self._held)

    @property
    def waiting(self) -> int:
        """Number of requests that wait at this worker."""
        return len(self._queue)

    async def acquire(self, timeout: float) -> None:
        """Acquire a session; raises `CapacityReached` after `timeout` seconds."""
        if not self._queue and self._try_acquire():
            return
        turn = asyncio.get_running_loop().create_future()
        self._queue.append(turn)
        self._grant_waiting()
        try:
            async with asyncio.timeout(timeout):
                await asyncio.shield(turn)
        except TimeoutError:
            if not turn.done():
                raise CapacityReached(
                    f"All {self.max_sessions} sessions are in use, and none was closed within "
                    f"{timeout:g} s. Try again later, or start the server with a larger "
                    "`max_sessions`.",
                    details={
                        "active_sessions": self.in_use,
                        "max_sessions": self.max_sessions,
                        "retry_after_s": max(1.0, timeout),
                    },
                ) from None
        except asyncio.CancelledError:
            if turn.done():
                self.release()
            raise
        finally:
            if not turn.done():
                self._queue.remove(turn)

    def release(self) -> None:
        with self._lock:
            self._held[self._worker] -= 1
        self._grant_waiting()

    def _try_acquire(self) -> bool:
        with self._lock:
            is_free = self.in_use < self.max_sessions
            self._held[self._worker] += is_free
        return is_free

    def _grant_waiting(self) -> None:
        """Grant free sessions to waiting requests; poll again while some still wait."""
        while self._queue and self._try_acquire():
            self._queue.popleft().set_result(None)
        if self._queue and self._timer is None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(_POLL_INTERVAL_S, self._poll)

    def _poll(self) -> None:
        self._timer = None
        self._grant_waiting()
