"""Requests of coroutines, and the answers that a thread gives them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from contextlib import suppress

from ludus.policy.engine.engine_api import Completion, Request

Result = Completion | Exception


class ResultQueue:
    """Answers for the coroutines of one event loop, which is woken up once for all that wait.

    To wake it up costs as much as to look for an answer, and as many answers come at once as there
    are episodes.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._lock = threading.Lock()
        self._results: list[tuple[asyncio.Future[Completion], Result]] = []

    def put(self, future: asyncio.Future[Completion], result: Result) -> None:
        """May be called by any thread."""
        with self._lock:
            self._results.append((future, result))
            if len(self._results) > 1:
                return
        # The loop may be gone by the time that a long step has ended.
        with suppress(RuntimeError):
            self.loop.call_soon_threadsafe(self._deliver)

    def _deliver(self) -> None:
        with self._lock:
            letters, self._results = self._results, []
        for future, outcome in letters:
            if not future.done():
                _set_result(future, outcome)


def _set_result(future: asyncio.Future[Completion], outcome: Result) -> None:
    if isinstance(outcome, Completion):
        future.set_result(outcome)
    else:
        future.set_exception(outcome)


class PendingRequest:
    """A request, and the coroutine that waits for what becomes of it."""

    def __init__(self, request: Request, result_queue: ResultQueue) -> None:
        self.request = request
        self.resolved = False
        self.future: asyncio.Future[Completion] = result_queue.loop.create_future()
        self._result_queue = result_queue

    @property
    def is_open(self) -> bool:
        return not (self.resolved or self.future.done())

    def resolve(self, result: Result) -> None:
        """May be called by any thread."""
        self.resolved = True
        self._result_queue.put(self.future, result)


class InFlightBatch:
    """Those whom an engine is answering, by the numbers that it knows them by.

    Who has been answered leaves, because an engine that others join may never come to an end.
    """

    def __init__(self, orders: Sequence[PendingRequest]) -> None:
        self._requests = dict(enumerate(orders))
        self._next_index = len(orders)
        self.peak_size = len(orders)
        """So many were there at once."""

    def __len__(self) -> int:
        return len(self._requests)

    @property
    def unresolved(self) -> list[PendingRequest]:
        return [order for order in self._requests.values() if order.is_open]

    def add(self, orders: Sequence[PendingRequest]) -> None:
        self._requests.update(enumerate(orders, self._next_index))
        self._next_index += len(orders)
        self.peak_size = max(self.peak_size, len(self._requests))

    def is_wanted(self, index: int) -> bool:
        """Whether anybody still waits for this answer."""
        order = self._requests.get(index)
        if order is not None and not order.is_open:
            del self._requests[index]
        return index in self._requests

    def resolve(self, index: int, sampled: Completion) -> None:
        order = self._requests.pop(index, None)
        if order is not None:
            order.resolve(sampled)


def select_similar_lengths(waiting: Sequence[PendingRequest], number: int) -> list[PendingRequest]:
    """The one that has waited longest, and those whose prompts are closest to its in length."""
    if len(waiting) <= number:
        return list(waiting)
    length = len(waiting[0].request.ids)
    return sorted(waiting, key=lambda order: abs(len(order.request.ids) - length))[:number]
