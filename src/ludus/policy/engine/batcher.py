"""Batch the requests of many coroutines for one engine.

One thread owns the model. Whenever it is free, it takes all waiting requests as one batch: the
batch size follows the number of concurrent episodes.
"""

from __future__ import annotations

import asyncio
import atexit
import threading
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Self
from weakref import ref

from ludus.errors import AgentError
from ludus.policy.engine.engine_api import (
    Completion,
    DecodeStats,
    Engine,
    Request,
    no_more_requests,
)
from ludus.policy.engine.sampling import SamplingParams
from ludus.policy.engine.scoped_settings import short_switch_interval, without_cudnn_sdpa

if TYPE_CHECKING:
    from ludus.policy.vision.processor import ProcessedImage

__all__ = ["Completion", "Engine", "RequestBatcher", "SamplingParams"]

BATCH_WAIT_S = 0.003
"""How long a batch waits for another request, for engines that requests cannot join later."""
STALL_TIMEOUT_S = 60.0
"""Without progress for this long, the engine no longer counts as working."""
JOIN_TIMEOUT_S = 20.0
"""How long the interpreter's exit waits for the engine's thread."""


Result = Completion | Exception
ReceiveTokens = Callable[[Sequence[int], Sequence[float]], None]
"""Takes new ids of a completion and their log-probabilities, on the event loop."""


class BatchedRequest:
    """A request, and the future of the coroutine that waits for its completion.

    `receive_tokens` is called on the coroutine's loop with the tokens, as they are sampled.
    """

    def __init__(
        self,
        request: Request,
        loop: asyncio.AbstractEventLoop,
        receive_tokens: ReceiveTokens | None = None,
    ) -> None:
        streams = receive_tokens is not None
        self.request = replace(request, on_tokens=self._queue_tokens) if streams else request
        self.resolved = False
        self.future: asyncio.Future[Completion] = loop.create_future()
        self._loop = loop
        self._receive_tokens = receive_tokens
        self._num_queued = 0

    @property
    def is_open(self) -> bool:
        """Neither resolved nor cancelled by its caller."""
        return not (self.resolved or self.future.done())

    def resolve(self, result: Result) -> None:
        """Send the result to the waiting coroutine. May be called from any thread."""
        self.resolved = True

        def set_result() -> None:
            if isinstance(result, Completion):
                self.future.set_result(result)
            else:
                self.future.set_exception(result)

        self._call_in_loop(set_result)

    def _call_in_loop(self, call: Callable[[], None]) -> None:
        """Call it on the coroutine's loop, unless the future is done by then."""
        # The loop may be closed by the time a long decoding step ends.
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(lambda: None if self.future.done() else call())

    def _queue_tokens(self, start: int, ids: Sequence[int], logprobs: Sequence[float]) -> None:
        # A request that is retried after a failed batch is sampled from its start once more.
        known = max(0, self._num_queued - start)
        if known >= len(ids):
            return
        self._num_queued = start + len(ids)

        def pass_tokens() -> None:
            try:
                if self._receive_tokens is not None:
                    self._receive_tokens(ids[known:], logprobs[known:])
            except Exception as error:
                self.future.set_exception(error)

        self._call_in_loop(pass_tokens)


class RequestBatcher:
    """Samples from a local model for many coroutines. Use it as an async context manager.

    Args:
        engine: What decodes the batches.
        max_batch: Most sequences that are decoded at once. Halved when memory runs out.
        batch_wait_s: A batch starts when no other request has arrived for this long; 0 for engines
            with continuous batching, which need not wait.
    """

    def __init__(
        self, engine: Engine, *, max_batch: int = 64, batch_wait_s: float = BATCH_WAIT_S
    ) -> None:
        self.max_batch = self._configured_max_batch = max_batch
        self.engine = engine
        self._batch_wait_s = batch_wait_s
        self._engine_lock = threading.Lock()
        self._last_progress = -STALL_TIMEOUT_S
        self._condition = threading.Condition()
        """Guards the fields below; notified about new requests and `close`."""
        self._pending: list[BatchedRequest] = []
        self._unanswered: set[BatchedRequest] = set()
        self._closed = False
        self._thread: threading.Thread | None = None

    async def sample(
        self,
        prompt_ids: Sequence[int],
        *,
        max_tokens: int,
        stop_token_ids: Collection[int],
        sampling: SamplingParams,
        seed: int,
        images: Sequence[ProcessedImage] = (),
        receive_tokens: ReceiveTokens | None = None,
    ) -> Completion:
        """Sample a completion. The same request and seed give the same result in any batch.

        Except for rounding: on a GPU the batch size changes the last bits of the logits.
        `receive_tokens` is called with the tokens as they are sampled, before this returns.
        """
        request = Request(
            tuple(prompt_ids), max_tokens, frozenset(stop_token_ids), sampling, seed, tuple(images)
        )
        with self._condition:
            if self._closed:
                raise _closed_error()
            pending = BatchedRequest(request, asyncio.get_running_loop(), receive_tokens)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="ludus-model", daemon=True)
                self._thread.start()
                atexit.register(_join_at_exit, ref(self), self._thread)
            self._pending.append(pending)
            self._unanswered.add(pending)
            self._condition.notify()
        try:
            return await pending.future
        finally:
            with self._condition:
                self._unanswered.discard(pending)

    @property
    def stats(self) -> DecodeStats:
        return self.engine.stats

    @property
    def is_working(self) -> bool:
        """Whether the engine has made progress within `STALL_TIMEOUT_S`."""
        return time.monotonic() - self._last_progress < STALL_TIMEOUT_S

    def refresh(self) -> None:
        """Tell the engine that the model's weights have changed. No request may be waiting."""
        # The engine delivers its last completion before it returns: wait until it has.
        with self._engine_lock:
            self.engine.refresh()
        # Memory may have been freed since the batch was halved.
        self.max_batch = self._configured_max_batch

    def free_cache(self, *, larger_than: int = 0) -> None:
        """Give back the engine's cache, if it takes more bytes than that. No request may wait."""
        with self._engine_lock:
            self.engine.free_cache(larger_than=larger_than)

    async def close(self) -> None:
        """Fail all waiting requests, and let the thread end after its current token."""
        with self._condition:
            self._closed = True
            self._condition.notify()
            unanswered = list(self._unanswered)
        for pending in unanswered:
            pending.resolve(_closed_error())

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    def _run(self) -> None:
        while batch := self._take_batch():
            self._process_batch(batch)

    def _take_batch(self) -> list[BatchedRequest]:
        """Wait for requests and return the next batch; empty once the batcher is closed."""
        with self._condition:
            self._condition.wait_for(lambda: self._pending or self._closed)
            # Requests come in bursts: wait until the number of pending ones stops growing.
            while self._batch_wait_s and not self._closed and len(self._pending) < self.max_batch:
                num_pending = len(self._pending)
                self._condition.wait_for(lambda: self._closed, timeout=self._batch_wait_s)
                if len(self._pending) == num_pending:
                    break
            if self._closed:
                return []
            # The oldest request, and those with the most similar prompt lengths.
            length = len(self._pending[0].request.ids)
            by_similarity = sorted(
                self._pending, key=lambda each: abs(len(each.request.ids) - length)
            )
            batch = by_similarity[: self.max_batch]
            in_batch = set(batch)
            self._pending = [pending for pending in self._pending if pending not in in_batch]
            return batch

    def _process_batch(
        self, requests: Sequence[BatchedRequest], *, allow_joining: bool = True
    ) -> None:
        """Run the engine on the requests that are still open; retry a failed batch in halves.

        So an error reaches only the request that causes it, and a batch fits into memory.
        """
        requests = [pending for pending in requests if pending.is_open]
        if not requests or self._closed:
            return
        # By the engine's indices. An engine with continuous batching may run forever, so only
        # unresolved requests are kept.
        in_flight = dict(enumerate(requests))
        num_requests = peak_size = len(requests)
        counted_until = self._last_progress = time.monotonic()

        def poll_requests(room: int) -> Sequence[Request]:
            nonlocal num_requests, peak_size
            with self._condition:
                room = max(0, min(room, self.max_batch - len(in_flight)))
                if self._closed:
                    return ()
                joining, self._pending = self._pending[:room], self._pending[room:]
            in_flight.update(enumerate(joining, num_requests))
            num_requests += len(joining)
            peak_size = max(peak_size, len(in_flight))
            return [pending.request for pending in joining]

        def deliver(index: int, completion: Completion) -> None:
            # Count first: whoever gets the last completion may read the stats at once.
            nonlocal counted_until
            now = time.monotonic()
            self.stats.busy_s += now - counted_until
            counted_until = now
            if (pending := in_flight.pop(index, None)) is not None:
                pending.resolve(completion)

        def is_wanted(index: int) -> bool:
            # The engine asks in every step, which makes this the sign of its progress.
            self._last_progress = time.monotonic()
            pending = in_flight.get(index)
            if pending is not None and not pending.is_open:
                del in_flight[index]
            return index in in_flight and not self._closed

        poll = poll_requests if allow_joining else no_more_requests
        try:
            with self._engine_lock, short_switch_interval(), without_cudnn_sdpa():
                self.engine.run([each.request for each in requests], deliver, is_wanted, poll)
            return
        except Exception as error:
            # The traceback's frames would keep the failed batch's tensors alive during the retry.
            error.__traceback__ = error.__context__ = None
            failure = error
        finally:
            self.stats.busy_s += time.monotonic() - counted_until
        import torch

        if isinstance(failure, torch.OutOfMemoryError):
            if torch.cuda.is_available():
                torch.cuda.empty_cache()  # So that the retry has the memory.
            self.max_batch = (min(self.max_batch, peak_size) + 1) // 2
        unresolved = [pending for pending in in_flight.values() if pending.is_open]
        if len(unresolved) == 1:
            unresolved[0].resolve(failure)
            return
        middle = len(unresolved) // 2
        for half in (unresolved[:middle], unresolved[middle:]):
            self._process_batch(half, allow_joining=False)


def _join_at_exit(batcher: ref[RequestBatcher], thread: threading.Thread) -> None:
    """Wait for the engine's thread: killed inside torch, it would abort the interpreter.

    Also if the batcher was closed: its thread may be freeing GPU memory and CUDA graphs.
    """
    if (running := batcher()) is not None:
        with running._condition:
            running._closed = True
            running._condition.notify()
        del running
    thread.join(JOIN_TIMEOUT_S)


def _closed_error() -> AgentError:
    return AgentError("The model was closed before it had answered. Keep the agent open.")
