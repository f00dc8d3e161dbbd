"""How many sessions there may be, over all workers, and the queue for the next free one."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import MutableSequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from ludus.errors import CapacityReached

_POLL = 0.1
"""Seconds between two looks at slots that another process may have freed."""


class Slots:
    """A bounded count with a first-come, first-served queue.

    `counts` holds the sessions of each worker, in shared memory where there are several.
    """

    def __init__(
        self,
        maximum: int,
        *,
        counts: MutableSequence[int] | None = None,
        worker: int = 0,
        lock: AbstractContextManager[Any] | None = None,
    ) -> None:
        self.maximum = maximum
        self._counts = counts if counts is not None else [0]
        self._worker = worker
        self._lock = lock or nullcontext()
        self._queue: deque[asyncio.Event] = deque()

    @property
    def taken(self) -> int:
        return sum(self._counts)

    @property
    def waiting(self) -> int:
        return len(self._queue)

    async def acquire(self, timeout: float) -> None:
        """Take a slot, waiting at most `timeout` seconds for one."""
        if not self._queue and self._take():
            return
        deadline = time.monotonic() + timeout
        turn = asyncio.Event()
        self._queue.append(turn)
        try:
            while not (self._queue[0] is turn and self._take()):
                left = deadline - time.monotonic()
                if left <= 0:
                    raise self._full(timeout)
                turn.clear()
                try:
                    async with asyncio.timeout(min(left, _POLL)):
                        await turn.wait()
                except TimeoutError:
                    continue
        finally:
            self._queue.remove(turn)
            self._wake()

    def release(self) -> None:
        with self._lock:
            self._counts[self._worker] -= 1
        self._wake()

    def _take(self) -> bool:
        with self._lock:
            if sum(self._counts) >= self.maximum:
                return False
            self._counts[self._worker] += 1
            return True

    def _wake(self) -> None:
        if self._queue:
            self._queue[0].set()

    def _full(self, waited: float) -> CapacityReached:
        return CapacityReached(
            f"All {self.maximum} sessions are in use, and none came free within {waited:g} s. "
            "Try again later, or start the server with a larger --max-sessions.",
            details={
                "active_sessions": self.taken,
                "max_sessions": self.maximum,
                "retry_after_s": max(1.0, waited),
            },
        )
