"""Throttles API calls: an adaptive concurrency limit, and a backoff between attempts.

The limit has additive increase and multiplicative decrease, as in TCP's congestion control:
providers do not say how many concurrent calls they accept, but they reject calls when it is
exceeded.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

from ludus.errors import ConfigError


class Throttle:
    """Hands out slots for calls, first come first served.

        async with throttle.slot() as slot:
            ...
            slot.report_success()  # or slot.report_overload()

    It starts at the maximum: most providers accept that, and with others it takes one round trip
    to notice. Use it from one event loop.
    """

    def __init__(self, max_limit: int, *, clock: Callable[[], float] = time.monotonic) -> None:
        if max_limit < 1:
            raise ConfigError(f"`concurrency` must be at least 1, got {max_limit}.")
        self.max_limit = max_limit
        self.in_flight = 0
        self._limit = float(max_limit)
        self._epoch = 0
        """Counts the decreases."""
        self._clock = clock
        self._resumes_at = 0.0
        self._waiters: deque[asyncio.Event] = deque()

    @property
    def limit(self) -> int:
        """The number of concurrent calls that is allowed at the moment."""
        return int(self._limit)

    @property
    def pause_remaining_s(self) -> float:
        """Seconds until the pause ends; 0 without one."""
        return max(0.0, self._resumes_at - self._clock()) if self._resumes_at else 0.0

    def pause(self, seconds: float) -> None:
        """Start no calls for this long. A shorter pause does not end a longer one."""
        self._resumes_at = max(self._resumes_at, self._clock() + seconds)

    @asynccontextmanager
    async def slot(self) -> AsyncIterator[ThrottleSlot]:
        """Wait for a slot, and hold it for one call."""
        waiter = asyncio.Event()
        self._waiters.append(waiter)
        try:
            # Only the first one looks whether it may start; then it wakes the next.
            while True:
                if self._waiters[0] is not waiter or self.in_flight >= self.limit:
                    waiter.clear()
                    await waiter.wait()
                elif pause := self.pause_remaining_s:
                    await asyncio.sleep(pause)
                else:
                    break
            self.in_flight += 1
        finally:
            self._waiters.remove(waiter)
            self._wake_first()
        try:
            yield ThrottleSlot(self, self._epoch)
        finally:
            self.in_flight -= 1
            self._wake_first()

    def _wake_first(self) -> None:
        if self._waiters:
            self._waiters[0].set()

    def increase(self) -> None:
        self._limit = min(float(self.max_limit), self._limit + 1 / self._limit)
        self._wake_first()

    def decrease(self, epoch: int) -> None:
        if epoch == self._epoch:
            self._epoch += 1
            self._limit = max(1.0, self._limit / 2)


@dataclass(frozen=True, slots=True)
class ThrottleSlot:
    """One call's slot. Report the call's outcome before leaving it."""

    throttle: Throttle
    epoch: int
    """Of the limit under which the call began."""

    def report_success(self) -> None:
        """Raise the limit by 1 per `limit` successes."""
        self.throttle.increase()

    def report_overload(self) -> None:
        """Halve the limit, unless that was already done after this call began.

        So a hundred calls that are rejected together count once.
        """
        self.throttle.decrease(self.epoch)


@dataclass(frozen=True, slots=True)
class Backoff:
    """Exponential backoff with full jitter, in seconds.

    Jitter keeps calls that failed together from coming back together.
    """

    base: float = 0.5
    cap: float = 30.0

    def delay_s(self, retry: int) -> float:
        """A random delay before this retry of a call; the first has the number 0."""
        return random.uniform(0.0, min(self.cap, self.base * 2.0 ** min(retry, 30)))
