"""Throttles API calls: an adaptive concurrency limit, and a backoff between attempts.

The limit has additive increase and multiplicative decrease, as in TCP's congestion control:
providers do not say how many concurrent calls they accept, but they reject calls when it is
exceeded.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol

from ludus.errors import ConfigError


class Clock(Protocol):
    """The time functions of an event loop."""

    def time(self) -> float: ...

    def call_later(self, delay: float, callback: Callable[[], object]) -> Any: ...


class Throttle:
    """Hands out slots for calls, first come first served.

        async with throttle.slot() as slot:
            ...
            slot.report_success()  # or slot.report_overload()

    It starts at the maximum: most providers accept that, and with others it takes one round trip
    to notice. Use it from one event loop.
    """

    def __init__(self, max_limit: int, *, clock: Clock | None = None) -> None:
        if max_limit < 1:
            raise ConfigError(f"`concurrency` must be at least 1, got {max_limit}.")
        self.max_limit = max_limit
        self.in_flight = 0
        self._limit = float(max_limit)
        self._epoch = 0
        self._clock = clock
        self._resumes_at = float("-inf")
        self._timer_set = False
        self._waiters: deque[asyncio.Future[None]] = deque()

    @property
    def limit(self) -> int:
        """The number of concurrent calls that is allowed at the moment."""
        return int(self._limit)

    @property
    def pause_remaining_s(self) -> float:
        """Seconds until the pause ends; 0 without one."""
        return max(0.0, self._resumes_at - self._now()) if self._is_paused() else 0.0

    def slot(self) -> ThrottleSlot:
        return ThrottleSlot(self)

    def pause(self, seconds: float) -> None:
        """Start no calls for this long. A shorter pause does not end a longer one."""
        self._resumes_at = max(self._resumes_at, self._now() + seconds)

    async def _acquire(self) -> int:
        """Wait for a slot; returns the epoch of the limit under which the call begins."""
        if not self._waiters and self._has_capacity():
            self.in_flight += 1
            return self._epoch
        waiter = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        self._wake_waiters()
        try:
            await waiter
        except asyncio.CancelledError:
            if waiter.cancelled():
                with suppress(ValueError):
                    self._waiters.remove(waiter)
            else:
                # Race: this waiter got a slot and was cancelled before it could run.
                self._release()
            raise
        return self._epoch

    def _release(self) -> None:
        self.in_flight -= 1
        self._wake_waiters()

    def _wake_waiters(self) -> None:
        while self._waiters and self._has_capacity():
            waiter = self._waiters.popleft()
            if waiter.done():
                continue
            self.in_flight += 1
            waiter.set_result(None)
        if self._waiters and not self._timer_set and self._is_paused():
            self._timer_set = True
            clock = self._clock or asyncio.get_running_loop()
            clock.call_later(self._resumes_at - clock.time(), self._on_timer)

    def _has_capacity(self) -> bool:
        return self.in_flight < self.limit and not self._is_paused()

    def _is_paused(self) -> bool:
        # The common case, without a call of the clock.
        if self._resumes_at == float("-inf"):
            return False
        if self._now() < self._resumes_at:
            return True
        self._resumes_at = float("-inf")
        return False

    def _on_timer(self) -> None:
        self._timer_set = False
        self._wake_waiters()

    def _now(self) -> float:
        return (self._clock or asyncio.get_running_loop()).time()

    def _increase(self) -> None:
        self._limit = min(float(self.max_limit), self._limit + 1 / self._limit)
        self._wake_waiters()

    def _decrease(self, epoch: int) -> None:
        if epoch == self._epoch:
            self._epoch += 1
            self._limit = max(1.0, self._limit / 2)


class ThrottleSlot:
    """One call's slot. Report the call's outcome before leaving it."""

    __slots__ = ("_epoch", "_throttle")

    def __init__(self, throttle: Throttle) -> None:
        self._throttle = throttle
        self._epoch = -1

    def report_success(self) -> None:
        """Raise the limit by 1 per `limit` successes."""
        self._throttle._increase()

    def report_overload(self) -> None:
        """Halve the limit, unless that was already done after this call began.

        So a hundred calls that are rejected together count once.
        """
        self._throttle._decrease(self._epoch)

    async def __aenter__(self) -> ThrottleSlot:
        self._epoch = await self._throttle._acquire()
        return self

    async def __aexit__(self, *error: object) -> None:
        self._throttle._release()


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
