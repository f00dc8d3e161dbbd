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

    def __init__(self, ceiling: int, *, clock: Clock | None = None) -> None:
        if ceiling < 1:
            raise ConfigError(f"{ceiling} calls at once is not possible; give at least 1.")
        self.ceiling = ceiling
        self.under_way = 0
        self._level = float(ceiling)
        self._epoch = 0
        self._clock = clock
        self._resumes_at = float("-inf")
        self._timer_set = False
        self._waiting: deque[asyncio.Future[None]] = deque()

    @property
    def level(self) -> int:
        """How many calls may be under way at once just now."""
        return int(self._level)

    @property
    def pause_left(self) -> float:
        """Seconds until calls may begin again; 0 when they may."""
        return max(0.0, self._resumes_at - self._now()) if self._paused() else 0.0

    def slot(self) -> Slot:
        return Slot(self)

    def pause(self, seconds: float) -> None:
        """Let nobody begin a call before then. A shorter pause does not end a longer one."""
        self._resumes_at = max(self._resumes_at, self._now() + seconds)

    async def _acquire(self) -> int:
        if not self._waiting and self._open():
            self.under_way += 1
        else:
            await self._wait()
        return self._epoch

    async def _wait(self) -> None:
        turn = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        self._admit()
        try:
            await turn
        except asyncio.CancelledError:
            if turn.cancelled():
                with suppress(ValueError):
                    self._waiting.remove(turn)
            else:
                # The slot was handed over in the same instant.
                self._give_back()
            raise

    def _give_back(self) -> None:
        self.under_way -= 1
        self._admit()

    def _admit(self) -> None:
        while self._waiting and self._open():
            turn = self._waiting.popleft()
            if turn.done():
                continue
            self.under_way += 1
            turn.set_result(None)
        if self._waiting:
            self._set_timer()

    def _open(self) -> bool:
        return self.under_way < self.level and not self._paused()

    def _paused(self) -> bool:
        # The clock is asked only while it matters.
        if self._resumes_at == float("-inf"):
            return False
        if self._now() < self._resumes_at:
            return True
        self._resumes_at = float("-inf")
        return False

    def _set_timer(self) -> None:
        if self._timer_set or not self._paused():
            return
        self._timer_set = True
        clock = self._clock or asyncio.get_running_loop()
        clock.call_later(self._resumes_at - clock.time(), self._on_timer)

    def _on_timer(self) -> None:
        self._timer_set = False
        self._admit()

    def _now(self) -> float:
        return (self._clock or asyncio.get_running_loop()).time()

    def _rise(self) -> None:
        self._level = min(float(self.ceiling), self._level + 1 / self._level)
        self._admit()

    def _fall(self, epoch: int) -> None:
        if epoch == self._epoch:
            self._epoch += 1
            self._level = max(1.0, self._level / 2)


class Slot:
    """One call's place. What became of the call is said before the slot is left."""

    __slots__ = ("_epoch", "_throttle")

    def __init__(self, throttle: Throttle) -> None:
        self._throttle = throttle
        self._epoch = -1

    def succeeded(self) -> None:
        """One more call at once, when as many calls as there are slots have succeeded."""
        self._throttle._rise()

    def pushed_back(self) -> None:
        """Half as many calls at once, unless that was already done after this call began.

        A hundred calls that are turned away together are one piece of news, not a hundred.
        """
        self._throttle._fall(self._epoch)

    async def __aenter__(self) -> Slot:
        self._epoch = await self._throttle._acquire()
        return self

    async def __aexit__(self, *error: object) -> None:
        self._throttle._give_back()
