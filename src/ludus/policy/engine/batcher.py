"""Batch the requests of many coroutines for one engine.

One thread owns the model. Whenever it is free it takes all waiting requests as one batch, so that
the batch size follows the number of concurrent episodes.
"""

from __future__ import annotations

import asyncio
import atexit
import threading
import time
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any, Self
from weakref import WeakValueDictionary, ref

from ludus.errors import AgentError
from ludus.policy.engine.decode_stats import DecodeStats
from ludus.policy.engine.engine_api import (
    Completion,
    Engine,
    PollRequests,
    Request,
    no_more_requests,
)
from ludus.policy.engine.hf_decoder import HFDecoder
from ludus.policy.engine.request_queue import (
    InFlightBatch,
    PendingRequest,
    ReceiveTokens,
    ResultQueue,
    select_similar_lengths,
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


class RequestBatcher:
    """Samples from a local model for many coroutines. Use it as an async context manager.

    Args:
        model: A causal language model of transformers.
        pad_id: Pads shorter prompts; masked out of attention.
        max_batch: Most sequences that are decoded at once. Halved when memory runs out.
        engine: What decodes the batches. Default: the model's own forward pass.
        batch_wait_s: A batch starts when no other request has arrived for this long; 0 for engines
            with continuous batching, which need not wait.
    """

    def __init__(
        self,
        model: Any,
        *,
        pad_id: int = 0,
        max_batch: int = 64,
        engine: Engine | None = None,
        batch_wait_s: float = BATCH_WAIT_S,
    ) -> None:
        self.max_batch = self._configured_max_batch = max_batch
        self._engine = engine or HFDecoder(model, pad_id=pad_id)
        self._batch_wait_s = batch_wait_s
        self._engine_lock = threading.Lock()
        self._last_progress = -STALL_TIMEOUT_S
        self._condition = threading.Condition()
        """Guards the fields below; notified about new requests and `close`."""
        self._pending: list[PendingRequest] = []
        self._unanswered: set[PendingRequest] = set()
        self._result_queues: WeakValueDictionary[asyncio.AbstractEventLoop, ResultQueue] = (
            WeakValueDictionary()
        )
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

        Except for rounding: on a GPU the batch size changes the last bits of the logits, and so
        sometimes which of two close tokens is sampled. `receive_tokens` is called with the tokens,
        as they are sampled; all of them come before the completion.
        """
        request = Request(
            tuple(prompt_ids),
            max_tokens,
            frozenset(stop_token_ids),
            sampling,
            seed,
            tuple(images),
        )
        with self._condition:
            if self._closed:
                raise _closed_error()
            loop = asyncio.get_running_loop()
            result_queue = self._result_queues.setdefault(loop, ResultQueue(loop))
            pending = PendingRequest(request, result_queue, receive_tokens)
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
        return self._engine.stats

    @property
    def is_working(self) -> bool:
        """Whether the engine has made progress within `STALL_TIMEOUT_S`."""
        return time.monotonic() - self._last_progress < STALL_TIMEOUT_S

    def refresh(self) -> None:
        """Tell the engine that the model's weights have changed, from any thread.

        No request may be waiting.
        """
        # The engine delivers its last completion before it returns: wait until it has.
        with self._engine_lock:
            self._engine.refresh()
        # Memory may have been freed since the batch was halved.
        self.max_batch = self._configured_max_batch

    def free_cache(self, *, larger_than: int = 0) -> None:
        """Give back the engine's cache, if it takes more bytes than that. No request may wait."""
        with self._engine_lock:
            self._engine.free_cache(larger_than=larger_than)

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

    def _take_batch(self) -> list[PendingRequest]:
        """Wait for requests and return the next batch; empty once the batcher is closed."""
        with self._condition:
            self._condition.wait_for(lambda: self._pending or self._closed)
            # Requests come in bursts: wait until the number of pending ones stops growing.
            while self._batch_wait_s and not self._closed and len(self._pending) < self.max_batch:
                num_pending = len(self._pending)
                self._condition.wait_for(lambda: self._closed, timeout=self._batch_wait_s)
                if len(self._pending) == num_pending:
                    break
            batch = [] if self._closed else select_similar_lengths(self._pending, self.max_batch)
            in_batch = set(batch)
            self._pending = [pending for pending in self._pending if pending not in in_batch]
            return batch

    def _process_batch(
        self, requests: Sequence[PendingRequest], *, allow_joining: bool = True
    ) -> None:
        failure = self._try_batch(requests, allow_joining=allow_joining)
        if failure is not None:
            self._retry_failed(*failure)

    def _retry_failed(self, batch: InFlightBatch, error: Exception) -> None:
        """Retry a failed batch in halves, down to the requests that fail on their own.

        This isolates a request that the model cannot process, and finds a batch size that fits
        into memory. Any other error fails in both halves, and is then reported to all requests at
        once.
        """
        import torch

        out_of_memory = isinstance(error, torch.OutOfMemoryError)
        if out_of_memory:
            if torch.cuda.is_available():
                torch.cuda.empty_cache()  # So that the retry has the memory.
            self.max_batch = (min(self.max_batch, batch.peak_size) + 1) // 2
        requests = batch.unresolved
        middle = len(requests) // 2
        halves = [half for half in (requests[:middle], requests[middle:]) if middle]
        if out_of_memory and halves:
            for half in halves:
                self._process_batch(half, allow_joining=False)
            return
        failures = [failure for half in halves if (failure := self._try_batch(half)) is not None]
        if len(failures) == len(halves):
            for pending in requests:
                pending.resolve(error)
            return
        for failure in failures:
            self._retry_failed(*failure)

    def _try_batch(
        self, requests: Sequence[PendingRequest], *, allow_joining: bool = False
    ) -> tuple[InFlightBatch, Exception] | None:
        """Run the engine on the requests that are still open.

        If it fails, return the error and the batch, which includes the requests that have joined.
        """
        requests = [pending for pending in requests if pending.is_open]
        if not requests or self._closed:
            return None
        batch = InFlightBatch(requests)

        def poll_requests(room: int) -> Sequence[Request]:
            with self._condition:
                room = max(0, min(room, self.max_batch - len(batch)))
                if self._closed:
                    return ()
                joining, self._pending = self._pending[:room], self._pending[room:]
            batch.add(joining)
            return [pending.request for pending in joining]

        error = self._run_engine(
            batch,
            [pending.request for pending in requests],
            poll_requests if allow_joining else no_more_requests,
        )
        return None if error is None else (batch, error)

    def _run_engine(
        self, batch: InFlightBatch, requests: Sequence[Request], poll_requests: PollRequests
    ) -> Exception | None:
        """Run the engine, deliver its completions, and return its error."""
        counted_until = self._last_progress = time.monotonic()

        def deliver(index: int, completion: Completion) -> None:
            # Count first: whoever gets the last completion may read the stats at once.
            nonlocal counted_until
            now = time.monotonic()
            self.stats.busy_s += now - counted_until
            counted_until = now
            batch.resolve(index, completion)

        def is_wanted(index: int) -> bool:
            # The engine asks in every step, which makes this the sign of its progress.
            self._last_progress = time.monotonic()
            return batch.is_wanted(index) and not self._closed

        try:
            with self._engine_lock, short_switch_interval(), without_cudnn_sdpa():
                self._engine.run(requests, deliver, is_wanted, poll_requests)
        except Exception as error:
            # The traceback's frames would keep the failed batch's tensors alive during the retry.
            error.__traceback__ = error.__context__ = None
            return error
        finally:
            self.stats.busy_s += time.monotonic() - counted_until
        return None


def _join_at_exit(batcher: ref[RequestBatcher], thread: threading.Thread) -> None:
    """Wait for the engine's thread: one that the interpreter kills inside of torch aborts it.

    Also for the thread of a batcher that was closed. It may hold the last reference to the engine,
    and then frees GPU memory and CUDA graphs as its last act.
    """
    if (running := batcher()) is not None:
        with running._condition:
            running._closed = True
            running._condition.notify()
        del running
    thread.join(JOIN_TIMEOUT_S)


def _closed_error() -> AgentError:
    return AgentError("The model was closed before it had answered. Keep the agent open.")
