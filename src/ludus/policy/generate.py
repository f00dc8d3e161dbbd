"""Sampling from asyncio: what many episodes ask for at the same time becomes one batch.

One thread owns the model. It takes what is waiting whenever it is free, so that a batch is as large
as there are episodes. How a batch is answered is the engine's business.
"""

from __future__ import annotations

import asyncio
import atexit
import threading
from collections.abc import Collection, Sequence
from contextlib import suppress
from typing import Any, Protocol, Self

from ludus.errors import AgentError
from ludus.policy.decoder import Decoder, Deliver, Request, Sampled, Wanted
from ludus.policy.sampling import Sampling

__all__ = ["Engine", "Generator", "Sampled", "Sampling"]

LULL = 0.003
"""Seconds without another request after which a burst of them is over."""
LAST_STEP = 20.0
"""Seconds that the thread gets to end its step before the process ends under it."""


class Engine(Protocol):
    """What answers a batch. It is called by one thread."""

    def run(self, requests: Sequence[Request], deliver: Deliver, wanted: Wanted) -> None: ...


class _Order:
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


class Generator:
    """A local model that many episodes sample from at once. Use it as an async context manager.

    Args:
        model: a causal language model of transformers, ready to be used.
        pad_id: what shorter prompts are filled up with; nothing sees it.
        max_batch: the most sequences that are decoded at once.
        engine: what answers batches, if not the model's own forward pass.
    """

    def __init__(
        self, model: Any, *, pad_id: int, max_batch: int = 64, engine: Engine | None = None
    ) -> None:
        self.max_batch = max_batch
        self._engine = engine or Decoder(model, pad_id=pad_id)
        self._changed = threading.Condition()
        self._waiting: list[_Order] = []
        self._orders: set[_Order] = set()
        self._closed = False
        self._thread: threading.Thread | None = None

    async def sample(
        self,
        ids: Sequence[int],
        *,
        max_tokens: int,
        stops: Collection[int],
        sampling: Sampling,
        seed: int,
    ) -> Sampled:
        """Go on from a prompt. The same request gives the same reply, whoever asks meanwhile."""
        order = _Order(Request(tuple(ids), max_tokens, frozenset(stops), sampling, seed))
        with self._changed:
            if self._closed:
                raise _put_away()
            self._start()
            self._waiting.append(order)
            self._changed.notify()
        self._orders.add(order)
        try:
            return await order.future
        finally:
            self._orders.discard(order)

    async def close(self) -> None:
        """End the thread after the token that it is at. Nothing is waited for."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        for order in self._orders:
            order.answer(_put_away())

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    def _start(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="ludus-model", daemon=True)
            self._thread.start()
            # A thread that the interpreter takes away in the midst of torch can bring it down.
            atexit.register(self._join)

    def _join(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify()
        if self._thread is not None:
            self._thread.join(LAST_STEP)

    def _work(self) -> None:
        while batch := self._next():
            self._answer(batch)
        atexit.unregister(self._join)

    def _next(self) -> list[_Order]:
        """Those whose turn it is, as soon as there are any; nobody: the end."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._closed)
            while not self._closed and len(self._waiting) < self.max_batch:
                before = len(self._waiting)
                self._changed.wait_for(lambda: self._closed, timeout=LULL)
                if len(self._waiting) == before:
                    break
            batch = [] if self._closed else alike(self._waiting, self.max_batch)
            self._waiting = [order for order in self._waiting if order not in batch]
            return batch

    def _answer(self, batch: list[_Order]) -> None:
        error = self._tried(batch)
        if error is not None:
            self._mend(batch, error)

    def _mend(self, batch: list[_Order], error: Exception) -> None:
        """A batch that failed is tried again in halves: one that fails alone fails for itself.

        That is as good for memory that runs out as for a request that the model cannot bear. What
        is neither fails in both halves, and is then said at once to all whom it befell.
        """
        if short := _is_out_of_memory(error):
            self.max_batch = min(self.max_batch, (len(batch) + 1) // 2)
        batch = [order for order in batch if order.open]
        middle = len(batch) // 2
        halves = [half for half in (batch[:middle], batch[middle:]) if middle]
        if short and halves:
            for half in halves:
                self._answer(half)
            return
        failed = [(half, why) for half in halves if (why := self._tried(half)) is not None]
        if len(failed) == len(halves):
            for order in batch:
                order.answer(error)
            return
        for half, why in failed:
            self._mend(half, why)

    def _tried(self, batch: list[_Order]) -> Exception | None:
        """What went wrong, if anything did; what is not waited for any more is left out."""
        batch = [order for order in batch if order.open]
        if not batch or self._closed:
            return None
        try:
            self._engine.run(
                [order.request for order in batch],
                lambda at, sampled: batch[at].answer(sampled),
                lambda at: batch[at].open and not self._closed,
            )
        except Exception as error:
            # Its frames hold on to every tensor that was alive when it was raised.
            error.__traceback__ = error.__context__ = None
            return error
        return None


def alike(waiting: Sequence[_Order], number: int) -> list[_Order]:
    """The one that has waited longest, and those whose prompts are closest to its in length."""
    if len(waiting) <= number:
        return list(waiting)
    length = len(waiting[0].request.ids)
    return sorted(waiting, key=lambda order: abs(len(order.request.ids) - length))[:number]


def _is_out_of_memory(error: Exception) -> bool:
    """Also gives back what the allocator keeps, or the next try would find it as full."""
    import torch

    if not isinstance(error, torch.OutOfMemoryError):
        return False
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    return True


def _put_away() -> AgentError:
    return AgentError("The model was put away before it had answered. Ask while it is open.")
