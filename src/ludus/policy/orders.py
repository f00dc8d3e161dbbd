"""A request of one coroutine, and the answer that a thread gives it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress

from ludus.policy.requests import Request, Sampled


class Order:
    """A request, and the coroutine that waits for what becomes of it."""

    def __init__(self, request: Request) -> None:
        self.request = request
        self.answered = False
        self._loop = asyncio.get_running_loop()
        self.future: asyncio.Future[Sampled] = self._loop.create_future()

    @property
    def open(self) -> bool:
        return not (self.answered or self.future.done())

    def answer(self, outcome: Sampled | Exception) -> None:
        """May be called by any thread."""
        self.answered = True
        # The loop may be gone by the time that a long step has ended.
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._settle, outcome)

    def _settle(self, outcome: Sampled | Exception) -> None:
        if self.future.done():
            return
        if isinstance(outcome, Sampled):
            self.future.set_result(outcome)
        else:
            self.future.set_exception(outcome)


def alike(waiting: Sequence[Order], number: int) -> list[Order]:
    """The one that has waited longest, and those whose prompts are closest to its in length."""
    if len(waiting) <= number:
        return list(waiting)
    length = len(waiting[0].request.ids)
    return sorted(waiting, key=lambda order: abs(len(order.request.ids) - length))[:number]
