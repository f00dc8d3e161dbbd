"""How many calls may be under way at once, found out by what the provider says.

Additive increase, multiplicative decrease, as TCP does it: providers do not tell what they can
bear, but they push back when it is exceeded. What counts as pushback is the caller's business.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Protocol

from ludus.errors import ConfigError


class Clock(Protocol):
    """What an event loop knows of time."""

    def time(self) -> float: ...

    def call_later(self, delay: float, callback: Callable[[], object]) -> Any: ...


class Throttle:
    """Slots for calls, first come first served.

        async with throttle.slot() as slot:
            ...
            slot.succeeded()  # or slot.pushed_back()

    It begins at the ceiling: most providers bear what they are asked, and one that does not is
    found out within a round trip. Use it from one event loop.
    """

    def __init__(self, max_limit: int, *, clock: Clock | None = None) -> None:
        if max_limit < 1:
            raise ConfigError(f"{max_limit} calls at once is not possible; give at least 1.")
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
        """How many calls may be under way at once just now."""
        return int(self._limit)

    @property
    def pause_remaining_s(self) -> float:
        """Seconds until calls may begin again; 0 when they may."""
        return max(0.0, self._resumes_at - self._now()) if self._is_paused() else 0.0

    def slot(self) -> ThrottleSlot:
        return ThrottleSlot(self)

    def pause(self, seconds: float) -> None:
        """Let nobody begin a call before then. A shorter pause does not end a longer one."""
        self._resumes_at = max(self._resumes_at, self._now() + seconds)

    async def _acquire(self) -> int:
        if not self._waiters and self._has_capacity():
            self.in_flight += 1
        else:
            await self._wait_for_slot()
        return self._epoch

    async def _wait_for_slot(self) -> None:
        turn = asyncio.get_running_loop().create_future()
        self._waiters.append(turn)
        self._wake_waiters()
        try:
            await turn
        except asyncio.CancelledError:
            if turn.cancelled():
                with suppress(ValueError):
                    self._waiters.remove(turn)
            else:
                # The slot was handed over in the same instant.
                self._release()
            raise

    def _release(self) -> None:
        self.in_flight -= 1
        self._wake_waiters()

    def _wake_waiters(self) -> None:
        while self._waiters and self._has_capacity():
            turn = self._waiters.popleft()
            if turn.done():
                continue
            self.in_flight += 1
            turn.set_result(None)
        if self._waiters:
            self._set_timer()

    def _has_capacity(self) -> bool:
        return self.in_flight < self.limit and not self._is_paused()

    def _is_paused(self) -> bool:
        # The clock is asked only while it matters.
        if self._resumes_at == float("-inf"):
            return False
        if self._now() < self._resumes_at:
            return True
        self._resumes_at = float("-inf")
        return False

    def _set_timer(self) -> None:
        if self._timer_set or not self._is_paused():
            return
        self._timer_set = True
        clock = self._clock or asyncio.get_running_loop()
        clock.call_later(self._resumes_at - clock.time(), self._on_timer)

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
    """One call's place. What became of the call is said before the slot is left."""

    __slots__ = ("_epoch", "_throttle")

    def __init__(self, throttle: Throttle) -> None:
        self._throttle = throttle
        self._epoch = -1

    def report_success(self) -> None:
        """One more call at once, when as many calls as there are slots have succeeded."""
        self._throttle._increase()

    def report_overload(self) -> None:
        """Half as many calls at once, unless that was already done after this call began.

        A hundred calls that are turned away together are one piece of news, not a hundred.
        """
        self._throttle._decrease(self._epoch)

    async def __aenter__(self) -> ThrottleSlot:
        self._epoch = await self._throttle._acquire()
        return self

    async def __aexit__(self, *error: object) -> None:
        self._throttle._release()
