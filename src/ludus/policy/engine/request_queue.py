"""Requests of coroutines, and the results that the engine's thread sends back to them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial

from ludus.policy.engine.engine_api import Completion, Request

Result = Completion | Exception
ReceiveTokens = Callable[[Sequence[int], Sequence[float]], None]
"""Takes new ids of a completion and their log-probabilities, on the event loop."""


class ResultQueue:
    """Calls that hand tokens and results to the coroutines of one event loop.

    The loop is woken once for all calls that are waiting: `call_soon_threadsafe` writes to a
    socket, and many results arrive at the same time.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._lock = threading.Lock()
        self._calls: list[Callable[[], None]] = []

    def put(self, call: Callable[[], None]) -> None:
        """Let the loop make this call, from any thread."""
        with self._lock:
            self._calls.append(call)
            if len(self._calls) > 1:
                return  # The loop has been woken already.
        # The loop may be closed by the time a long decoding step ends.
        with suppress(RuntimeError):
            self.loop.call_soon_threadsafe(self._deliver)

    def _deliver(self) -> None:
        with self._lock:
            calls, self._calls = self._calls, []
        for call in calls:
            call()


class PendingRequest:
    """A request, and the future of the coroutine that waits for its completion.

    `receive_tokens` is called on the coroutine's loop with the tokens, as they are sampled.
    """

    def __init__(
        self,
        request: Request,
        result_queue: ResultQueue,
        receive_tokens: ReceiveTokens | None = None,
    ) -> None:
        streams = receive_tokens is not None
        self.request = replace(request, on_tokens=self._queue_tokens) if streams else request
        self.resolved = False
        self.future: asyncio.Future[Completion] = result_queue.loop.create_future()
        self._result_queue = result_queue
        self._receive_tokens = receive_tokens
        self._num_queued = 0

    @property
    def is_open(self) -> bool:
        """Neither resolved nor cancelled by its caller."""
        return not (self.resolved or self.future.done())

    def resolve(self, result: Result) -> None:
        """Send the result to the waiting coroutine, from any thread."""
        self.resolved = True
        self._result_queue.put(partial(self._set_result, result))

    def _set_result(self, result: Result) -> None:
        if self.future.done():
            return
        if isinstance(result, Completion):
            self.future.set_result(result)
        else:
            self.future.set_exception(result)

    def _queue_tokens(self, start: int, ids: Sequence[int], logprobs: Sequence[float]) -> None:
        # A request that is retried after a failed batch is sampled from its start once more.
        known = max(0, self._num_queued - start)
        if known < len(ids):
            self._num_queued = start + len(ids)
            self._result_queue.put(partial(self._pass_tokens, ids[known:], logprobs[known:]))

    def _pass_tokens(self, ids: Sequence[int], logprobs: Sequence[float]) -> None:
        if self._receive_tokens is None or self.future.done():
            return
        try:
            self._receive_tokens(ids, logprobs)
        except Exception as error:
            self.future.set_exception(error)


class InFlightBatch:
    """The requests that an engine is working on, by the engine's indices.

    Resolved requests are removed: an engine with continuous batching may run forever.
    """

    def __init__(self, requests: Sequence[PendingRequest]) -> None:
        self._requests = dict(enumerate(requests))
        self._next_index = len(requests)
        self.peak_size = len(requests)
        """The most requests that were in the batch at the same time."""

    def __len__(self) -> int:
        return len(self._requests)

    @property
    def unresolved(self) -> list[PendingRequest]:
        return [request for request in self._requests.values() if request.is_open]

    def add(self, requests: Sequence[PendingRequest]) -> None:
        self._requests.update(enumerate(requests, self._next_index))
        self._next_index += len(requests)
        self.peak_size = max(self.peak_size, len(self._requests))

    def is_wanted(self, index: int) -> bool:
        """Whether a coroutine still waits for this request; cancelled requests are removed."""
        request = self._requests.get(index)
        if request is not None and not request.is_open:
            del self._requests[index]
        return index in self._requests

    def resolve(self, index: int, completion: Completion) -> None:
        request = self._requests.pop(index, None)
        if request is not None:
            request.resolve(completion)


def select_similar_lengths(pending: Sequence[PendingRequest], count: int) -> list[PendingRequest]:
    """Return the oldest request and those with the most similar prompt lengths."""
    if len(pending) <= count:
        return list(pending)
    length = len(pending[0].request.ids)
    return sorted(pending, key=lambda each: abs(len(each.request.ids) - length))[:count]
