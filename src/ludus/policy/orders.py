"""Requests of coroutines, and the answers that a thread gives them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from contextlib import suppress

from ludus.policy.requests import Request, Sampled

Outcome = Sampled | Exception


class Mail:
    """Answers for the coroutines of one event loop, which is woken up once for all that wait.

    To wake it up costs as much as to look for an answer, and as many answers come at once as there
    are episodes.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._lock = threading.Lock()
        self._letters: list[tuple[asyncio.Future[Sampled], Outcome]] = []

    def put(self, future: asyncio.Future[Sampled], outcome: Outcome) -> None:
        """May be called by any thread."""
        with self._lock:
            self._letters.append((future, outcome))
            if len(self._letters) > 1:
                return
        # The loop may be gone by the time that a long step has ended.
        with suppress(RuntimeError):
            self.loop.call_soon_threadsafe(self._hand_out)

    def _hand_out(self) -> None:
        with self._lock:
            letters, self._letters = self._letters, []
        for future, outcome in letters:
            if not future.done():
                _settle(future, outcome)


def _settle(future: asyncio.Future[Sampled], outcome: Outcome) -> None:
    if isinstance(outcome, Sampled):
        future.set_result(outcome)
    else:
        future.set_exception(outcome)


class Order:
    """A request, and the coroutine that waits for what becomes of it."""

    def __init__(self, request: Request, mail: Mail) -> None:
        self.request = request
        self.answered = False
        self.future: asyncio.Future[Sampled] = mail.loop.create_future()
        self._mail = mail

    @property
    def open(self) -> bool:
        return not (self.answered or self.future.done())

    def answer(self, outcome: Outcome) -> None:
        """May be called by any thread."""
        self.answered = True
        self._mail.put(self.future, outcome)


class Party:
    """Those whom an engine is answering, by the numbers that it knows them by.

    Who has been answered leaves, because an engine that others join may never come to an end.
    """

    def __init__(self, orders: Sequence[Order]) -> None:
        self._orders = dict(enumerate(orders))
        self._came = len(orders)
        self.most = len(orders)
        """So many were there at once."""

    def __len__(self) -> int:
        return len(self._orders)

    @property
    def left(self) -> list[Order]:
        return [order for order in self._orders.values() if order.open]

    def join(self, orders: Sequence[Order]) -> None:
        self._orders.update(enumerate(orders, self._came))
        self._came += len(orders)
        self.most = max(self.most, len(self._orders))

    def awaits(self, index: int) -> bool:
        """Whether anybody still waits for this answer."""
        order = self._orders.get(index)
        if order is not None and not order.open:
            del self._orders[index]
        return index in self._orders

    def answer(self, index: int, sampled: Sampled) -> None:
        order = self._orders.pop(index, None)
        if order is not None:
            order.answer(sampled)


def alike(waiting: Sequence[Order], number: int) -> list[Order]:
    """The one that has waited longest, and those whose prompts are closest to its in length."""
    if len(waiting) <= number:
        return list(waiting)
    length = len(waiting[0].request.ids)
    return sorted(waiting, key=lambda order: abs(len(order.request.ids) - length))[:number]
