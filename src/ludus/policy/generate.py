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
from ludus.policy.decoder import Decoder
from ludus.policy.meanwhile import changing_shapes, taking_turns
from ludus.policy.orders import Mail, Order, Party, alike
from ludus.policy.requests import Engine, More, Request, Sampled, nobody
from ludus.policy.sampling import Sampling
from ludus.policy.tally import Tally

if TYPE_CHECKING:
    from ludus.policy.eyes.pictures import Picture

__all__ = ["Engine", "Generator", "Sampled", "Sampling"]

LULL = 0.003
"""Seconds, for an engine that nobody can join."""
A_STEP = 60.0
"""Seconds without a sign from the engine after which it is no longer taken to be at work."""
LAST_STEP = 20.0
"""Seconds that the thread gets to end its step before the process ends under it."""


class Generator:
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
        lull: float = LULL,
    ) -> None:
        self.max_batch = self._most = max_batch
        self._engine = engine or Decoder(model, pad_id=pad_id)
        self._lull = lull
        self._running = threading.Lock()
        self._sign = -A_STEP
        self._changed = threading.Condition()
        self._waiting: list[Order] = []
        self._orders: set[Order] = set()
        self._mail: WeakValueDictionary[asyncio.AbstractEventLoop, Mail] = WeakValueDictionary()
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
        pictures: Sequence[Picture] = (),
    ) -> Sampled:
        """Go on from a prompt. The same request gives the same reply, whoever asks meanwhile.

        But for rounding: on a GPU the size of a batch has a say in a number's last bits, and so in
        which of two tokens is drawn that lie that close.
        """
        asked = Request(tuple(ids), max_tokens, frozenset(stops), sampling, seed, tuple(pictures))
        with self._changed:
            if self._closed:
                raise _put_away()
            loop = asyncio.get_running_loop()
            order = Order(asked, self._mail.setdefault(loop, Mail(loop)))
            self._start()
            self._waiting.append(order)
            self._orders.add(order)
            self._changed.notify()
        try:
            return await order.future
        finally:
            with self._changed:
                self._orders.discard(order)

    @property
    def stats(self) -> Tally:
        """What has been sampled, read and reused so far."""
        return self._engine.stats

    @property
    def at_work(self) -> bool:
        """Whether the engine has given a sign of life of late."""
        return time.monotonic() - self._sign < A_STEP

    def refresh(self) -> None:
        """The model has learned. For when nobody waits for an answer; may be called anywhere."""
        # The last answer goes out before the engine has put its things away.
        with self._running:
            self._engine.refresh()
        # Memory that was short then need not be now.
        self.max_batch = self._most

    async def close(self) -> None:
        """End the thread after the token that it is at. Nothing is waited for."""
        with self._changed:
            self._closed = True
            self._changed.notify()
            orders = list(self._orders)
        for order in orders:
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

    def _next(self) -> list[Order]:
        """Those whose turn it is, as soon as there are any; nobody: the end."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._closed)
            while self._lull and not self._closed and len(self._waiting) < self.max_batch:
                before = len(self._waiting)
                self._changed.wait_for(lambda: self._closed, timeout=self._lull)
                if len(self._waiting) == before:
                    break
            batch = [] if self._closed else alike(self._waiting, self.max_batch)
            gone = set(batch)
            self._waiting = [order for order in self._waiting if order not in gone]
            return batch

    def _answer(self, batch: Sequence[Order], *, others: bool = True) -> None:
        failed = self._tried(batch, others=others)
        if failed is not None:
            self._mend(*failed)

    def _mend(self, party: Party, error: Exception) -> None:
        """A batch that failed is tried again in halves: one that fails alone fails for itself.

        That is as good for memory that runs out as for a request that the model cannot bear. What
        is neither fails in both halves, and is then said at once to all whom it befell.
        """
        if short := _is_out_of_memory(error):
            self.max_batch = (min(self.max_batch, party.most) + 1) // 2
        batch = party.left
        middle = len(batch) // 2
        halves = [half for half in (batch[:middle], batch[middle:]) if middle]
        if short and halves:
            for half in halves:
                self._answer(half, others=False)
            return
        failed = [what for half in halves if (what := self._tried(half)) is not None]
        if len(failed) == len(halves):
            for order in batch:
                order.answer(error)
            return
        for what in failed:
            self._mend(*what)

    def _tried(
        self, batch: Sequence[Order], *, others: bool = False
    ) -> tuple[Party, Exception] | None:
        """Who was there and what went wrong, if anything did.

        What is not waited for any more is left out. Others may join: they then share its fate.
        """
        asked = [order for order in batch if order.open]
        if not asked or self._closed:
            return None
        party = Party(asked)

        def more(room: int) -> Sequence[Request]:
            joining = self._joining(party, room)
            party.join(joining)
            return [order.request for order in joining]

        requests = [order.request for order in asked]
        error = self._run(party, requests, more if others else nobody)
        return None if error is None else (party, error)

    def _joining(self, party: Party, room: int) -> list[Order]:
        """Those who have come since and are let in, as long as not too many are under way."""
        with self._changed:
            room = min(room, self.max_batch - len(party))
            if room <= 0 or self._closed or not self._waiting:
                return []
            joining, self._waiting = self._waiting[:room], self._waiting[room:]
        return joining

    def _run(self, party: Party, asked: Sequence[Request], more: More) -> Exception | None:
        began = self._sign = time.monotonic()

        def deliver(at: int, sampled: Sampled) -> None:
            # Counted first: whoever gets the last answer may look at the tally at once.
            nonlocal began
            began, before = time.monotonic(), began
            self.stats.busy += began - before
            party.answer(at, sampled)

        def wanted(at: int) -> bool:
            # Asked at every step.
            self._sign = time.monotonic()
            return party.awaits(at) and not self._closed

        try:
            with self._running, taking_turns(), changing_shapes():
                self._engine.run(asked, deliver, wanted, more)
        except Exception as error:
            # Its frames hold on to every tensor that was alive when it was raised.
            error.__traceback__ = error.__context__ = None
            return error
        finally:
            self.stats.busy += time.monotonic() - began
        return None


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
