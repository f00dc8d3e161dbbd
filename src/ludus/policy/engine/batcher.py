"""Sampling from asyncio: what many episodes ask for at the same time becomes one batch.

One thread owns the model. It takes what is waiting whenever it is free, so that a batch is as large
as there are episodes. How a batch is answered is the engine's business.
"""

from __future__ import annotations

import asyncio
import atexit
import threading
import time
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any, Self
from weakref import WeakValueDictionary

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
    ResultQueue,
    select_similar_lengths,
)
from ludus.policy.engine.sampling import SamplingParams
from ludus.policy.engine.scoped_settings import short_switch_interval, without_cudnn_sdpa

if TYPE_CHECKING:
    from ludus.policy.vision.images import ProcessedImage

__all__ = ["Completion", "Engine", "RequestBatcher", "SamplingParams"]

BATCH_WAIT_S = 0.003
"""Seconds, for an engine that nobody can join."""
STALL_TIMEOUT_S = 60.0
"""Seconds without a sign from the engine after which it is no longer taken to be at work."""
JOIN_TIMEOUT_S = 20.0
"""Seconds that the thread gets to end its step before the process ends under it."""


class RequestBatcher:
    """A local model that many episodes sample from at once. Use it as an async context manager.

    Args:
        model: a causal language model of transformers, ready to be used.
        pad_id: what shorter prompts are filled up with; nothing sees it.
        max_batch: the most sequences that are decoded at once.
        engine: what answers batches, if not the model's own forward pass.
        lull: seconds without another request after which a burst of them is over. An engine that
            others can join need not wait for them.
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
    ) -> Completion:
        """Go on from a prompt. The same request gives the same reply, whoever asks meanwhile.

        But for rounding: on a GPU the size of a batch has a say in a number's last bits, and so in
        which of two tokens is drawn that lie that close.
        """
        asked = Request(
            tuple(prompt_ids), max_tokens, frozenset(stop_token_ids), sampling, seed, tuple(images)
        )
        with self._condition:
            if self._closed:
                raise _closed_error()
            loop = asyncio.get_running_loop()
            order = PendingRequest(asked, self._result_queues.setdefault(loop, ResultQueue(loop)))
            self._start_thread()
            self._pending.append(order)
            self._unanswered.add(order)
            self._condition.notify()
        try:
            return await order.future
        finally:
            with self._condition:
                self._unanswered.discard(order)

    @property
    def stats(self) -> DecodeStats:
        """What has been sampled, read and reused so far."""
        return self._engine.stats

    @property
    def is_working(self) -> bool:
        """Whether the engine has given a sign of life of late."""
        return time.monotonic() - self._last_progress < STALL_TIMEOUT_S

    def refresh(self) -> None:
        """The model has learned. For when nobody waits for an answer; may be called anywhere."""
        # The last answer goes out before the engine has put its things away.
        with self._engine_lock:
            self._engine.refresh()
        # Memory that was short then need not be now.
        self.max_batch = self._configured_max_batch

    async def close(self) -> None:
        """End the thread after the token that it is at. Nothing is waited for."""
        with self._condition:
            self._closed = True
            self._condition.notify()
            orders = list(self._unanswered)
        for order in orders:
            order.resolve(_closed_error())

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    def _start_thread(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(
                target=self._run_thread, name="ludus-model", daemon=True
            )
            self._thread.start()
            # A thread that the interpreter takes away in the midst of torch can bring it down.
            atexit.register(self._join_at_exit)

    def _join_at_exit(self) -> None:
        with self._condition:
            self._closed = True
            self._condition.notify()
        if self._thread is not None:
            self._thread.join(JOIN_TIMEOUT_S)

    def _run_thread(self) -> None:
        while batch := self._take_batch():
            self._process_batch(batch)
        atexit.unregister(self._join_at_exit)

    def _take_batch(self) -> list[PendingRequest]:
        """Those whose turn it is, as soon as there are any; nobody: the end."""
        with self._condition:
            self._condition.wait_for(lambda: self._pending or self._closed)
            while self._batch_wait_s and not self._closed and len(self._pending) < self.max_batch:
                before = len(self._pending)
                self._condition.wait_for(lambda: self._closed, timeout=self._batch_wait_s)
                if len(self._pending) == before:
                    break
            batch = [] if self._closed else select_similar_lengths(self._pending, self.max_batch)
            gone = set(batch)
            self._pending = [order for order in self._pending if order not in gone]
            return batch

    def _process_batch(
        self, batch: Sequence[PendingRequest], *, allow_joining: bool = True
    ) -> None:
        failed = self._try_batch(batch, allow_joining=allow_joining)
        if failed is not None:
            self._retry_failed(*failed)

    def _retry_failed(self, party: InFlightBatch, error: Exception) -> None:
        """A batch that failed is tried again in halves: one that fails alone fails for itself.

        That is as good for memory that runs out as for a request that the model cannot bear. What
        is neither fails in both halves, and is then said at once to all whom it befell.
        """
        if short := _is_out_of_memory(error):
            self.max_batch = (min(self.max_batch, party.peak_size) + 1) // 2
        batch = party.unresolved
        middle = len(batch) // 2
        halves = [half for half in (batch[:middle], batch[middle:]) if middle]
        if short and halves:
            for half in halves:
                self._process_batch(half, allow_joining=False)
            return
        failed = [what for half in halves if (what := self._try_batch(half)) is not None]
        if len(failed) == len(halves):
            for order in batch:
                order.resolve(error)
            return
        for what in failed:
            self._retry_failed(*what)

    def _try_batch(
        self, batch: Sequence[PendingRequest], *, allow_joining: bool = False
    ) -> tuple[InFlightBatch, Exception] | None:
        """Who was there and what went wrong, if anything did.

        What is not waited for any more is left out. Others may join: they then share its fate.
        """
        asked = [order for order in batch if order.is_open]
        if not asked or self._closed:
            return None
        party = InFlightBatch(asked)

        def more(room: int) -> Sequence[Request]:
            joining = self._take_joining(party, room)
            party.add(joining)
            return [order.request for order in joining]

        requests = [order.request for order in asked]
        error = self._run_engine(party, requests, more if allow_joining else no_more_requests)
        return None if error is None else (party, error)

    def _take_joining(self, party: InFlightBatch, room: int) -> list[PendingRequest]:
        """Those who have come since and are let in, as long as not too many are under way."""
        with self._condition:
            room = min(room, self.max_batch - len(party))
            if room <= 0 or self._closed or not self._pending:
                return []
            joining, self._pending = self._pending[:room], self._pending[room:]
        return joining

    def _run_engine(
        self, party: InFlightBatch, asked: Sequence[Request], more: PollRequests
    ) -> Exception | None:
        began = self._last_progress = time.monotonic()

        def deliver(at: int, sampled: Completion) -> None:
            # Counted first: whoever gets the last answer may look at the tally at once.
            nonlocal began
            began, before = time.monotonic(), began
            self.stats.busy_s += began - before
            party.resolve(at, sampled)

        def wanted(at: int) -> bool:
            # Asked at every step.
            self._last_progress = time.monotonic()
            return party.is_wanted(at) and not self._closed

        try:
            with self._engine_lock, short_switch_interval(), without_cudnn_sdpa():
                self._engine.run(asked, deliver, wanted, more)
        except Exception as error:
            # Its frames hold on to every tensor that was alive when it was raised.
            error.__traceback__ = error.__context__ = None
            return error
        finally:
            self.stats.busy_s += time.monotonic() - began
        return None


def _is_out_of_memory(error: Exception) -> bool:
    """Also gives back what the allocator keeps, or the next try would find it as full."""
    import torch

    if not isinstance(error, torch.OutOfMemoryError):
        return False
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    return True


def _closed_error() -> AgentError:
    return AgentError("The model was put away before it had answered. Ask while it is open.")
