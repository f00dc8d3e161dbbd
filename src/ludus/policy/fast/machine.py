"""A model on its device: the cache, the slots, the rows of a batch, and the steps that move them.

It reads prompts and launches steps in the sizes that it has graphs for. Who asked for what, and
when a reply has ended, is `ludus.policy.fast.session`'s business.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import numpy as np

from ludus.policy.fast.cache import Cache
from ludus.policy.fast.cut import least_kept
from ludus.policy.fast.graphs import Eager, Graphs
from ludus.policy.fast.network import Network
from ludus.policy.fast.passage import Passage
from ludus.policy.fast.rows import (
    LEAST,
    POSITION,
    SLOT,
    TEMPERATURE,
    TOKEN,
    TOP_K,
    TOP_P,
    Line,
    Look,
    Rows,
)
from ludus.policy.fast.slots import Lease, Slots
from ludus.policy.tally import Tally

SIZES = (1, 8, 32, 64, 128, 256, 512, 1024)
"""Rows of a step; a batch is filled up to the next of them. Each costs graphs of its own, which
take longer to record than a few rows more take to run."""
READ_SIZES = (64, 256, 512, 1024, 2048)
"""Tokens of prompts that are read at once, likewise."""
MANY, FEW = 8, 2
"""Steps that are launched as one: most of what is decoded comes in many."""
GROWTH = 4
"""How many times as many slots there are when there were too few."""
WORTH_GROWING = 1.25
"""As many times more slots, where memory is short: it is never twice the same, and each time that
the cache grows every graph is forgotten."""
PROGRAMS = 264
"""Two for each of a large GPU's processors: with fewer, long rows are shared between several."""
SPLIT_LENGTH = 256
"""Tokens below which a row is not worth sharing."""


class Machine:
    """Everything that lies on the device, and the only one that launches work there."""

    def __init__(self, network: Network, cache: Cache, *, max_batch: int) -> None:
        self.max_batch = min(max_batch, SIZES[-1])
        self.cache = cache
        self.slots = Slots()
        self.stats = Tally()
        self._network = network
        self._device = network.weights.device
        self._graphs = Graphs() if self._device.type == "cuda" else Eager()
        self._expected = 1, 1
        self._rows = self._made_rows(8)
        self._fresh = False
        self._reading = Passage(3 * READ_SIZES[-1], self._device)
        self._lines: Sequence[Line] = ()
        self._size = 0

    def expect(self, rows: int, length: int) -> None:
        """What to make room for at once: to grow later costs every graph."""
        self._expected = rows, length

    def prepare(self, number: int, length: int) -> None:
        """See to it that there are so many slots, and as long, if memory and those at work let."""
        slots, now = min(number, self.max_batch), self.cache
        if slots <= now.slots and length <= now.length:
            return
        rows, long = self._expected
        wanted = now.slots
        if slots > now.slots:
            wanted = min(self.max_batch, max(slots, rows, GROWTH * now.slots))
        found, length = now.fitting(wanted, max(length, long, now.length))
        if length <= now.length and found < min(wanted, WORTH_GROWING * now.slots):
            return
        if found < now.slots:
            # Those that would go may be in use; whoever needs longer ones waits until none is.
            if self.slots.free < now.slots:
                return
            self.drop()
        self._graphs.forget()
        now.resize(found, length)
        self.slots.resize(found, length)

    def drop(self) -> None:
        """Give the cache back."""
        self._graphs.forget()
        self.cache.drop()
        self.slots = Slots()

    def settle(self) -> None:
        """After an error: wait until nothing is under way that still reads what is here."""
        import torch

        if self._device.type == "cuda":
            # What is broken for good says so again when it is used next.
            with suppress(RuntimeError):
                torch.cuda.current_stream(self._device).synchronize()

    def admit(self, prompts: Sequence[tuple[int, ...]]) -> list[Lease]:
        """A slot for each, as far as there are any, with all but the last token read."""
        self.slots.begin_round()
        leases: list[Lease] = []
        for ids in prompts:
            lease = self.slots.lease(ids)
            if lease is None:
                break
            leases.append(lease)
        placed = list(zip(leases, prompts, strict=False))
        try:
            for wave in sorted({lease.wave for lease in leases}):
                self._fill([pair for pair in placed if pair[0].wave == wave])
        except BaseException:
            # Noted as read, though it may not have been: nobody may find anything there.
            for lease in leases:
                self.slots.release(lease.slot, ())
            raise
        return leases

    def _fill(self, placed: Sequence[tuple[Lease, tuple[int, ...]]]) -> None:
        copies = [(lease.source, lease.slot) for lease, _ in placed if lease.source is not None]
        if copies:
            longest = max(lease.known for lease, _ in placed if lease.source is not None)
            self.cache.copy([(a, b) for a, b in copies], longest)
        parts = [_part(ids, lease) for lease, ids in placed]
        self._read(np.concatenate(parts, axis=1))
        # The last token of each is read by the first step.
        self.stats.read += sum(part.shape[1] + 1 for part in parts)
        self.stats.reused += sum(lease.known for lease, _ in placed)

    def _read(self, tokens: Any) -> None:
        for start in range(0, tokens.shape[1], READ_SIZES[-1]):
            piece = tokens[:, start : start + READ_SIZES[-1]]
            number = piece.shape[1]
            size = _size_of(number, READ_SIZES)
            self._reading.wait()
            padded = self._reading.array[: 3 * size].reshape(3, size)
            padded[:, number:] = [[0], [self.cache.scratch], [0]]
            padded[:, :number] = piece
            self._reading.send(0, 3 * size)
            self._graphs.run(("read", size), partial(self._read_pass, size))

    def _read_pass(self, size: int) -> None:
        tokens, slots, positions = self._reading.there[: 3 * size].view(3, size)
        self._network.read(tokens, slots, positions, self.cache)

    def load(self, lines: Sequence[Line]) -> None:
        """These are the rows from now on."""
        most = max(len(line.stops) for line in lines)
        if most > self._rows.stops.shape[1]:
            self._graphs.forget()
            self._rows = self._made_rows(1 << (most - 1).bit_length())
        self._rows.load(lines, scratch=self.cache.scratch)
        self._lines, self._size, self._fresh = lines, _size_of(len(lines)), True

    def advance(self, steps: int) -> None:
        """Launch so many steps, or one more, and wait for nothing; who has ended stays as it is."""
        if not self._fresh:
            self._rows.again()
        self._fresh = False
        splits = self._splits()
        if any(line.cut for line in self._lines):
            for _ in range(steps):
                self._cut_step(splits)
            return
        for number in _launches(steps):
            work = partial(self._steps, number, splits)
            self._graphs.run(("steps", number, self._size, splits), work)

    def look(self) -> Look:
        """Wait for the steps launched, and see what came of them."""
        return self._rows.look(len(self._lines))

    def _steps(self, number: int, splits: int) -> None:
        for _ in range(number):
            self._network.operations.sample(self._logits(splits), self._rows)

    def _cut_step(self, splits: int) -> None:
        """To sort the vocabulary is no kernel of ours, so that part is launched as it is."""
        logits = self._graphs.run(("logits", self._size, splits), partial(self._logits, splits))
        heat, state = (each[:, : self._size] for each in (self._rows.heat, self._rows.state))
        heat[LEAST] = least_kept(logits, heat[TEMPERATURE], heat[TOP_P], state[TOP_K])
        self._network.operations.sample(logits, self._rows)

    def _logits(self, splits: int) -> Any:
        state = self._rows.state[:, : self._size]
        where = state[TOKEN], state[SLOT], state[POSITION]
        return self._network.step(*where, self.cache, splits=splits)

    def _splits(self) -> int:
        """Of each row, by how long it may become: what is long now would want other graphs soon."""
        heads = self._size * self._network.blueprint.kv_heads
        most = min(PROGRAMS // heads, self.cache.length // SPLIT_LENGTH, 32)
        return 1 << max(0, most.bit_length() - 1)

    def _made_rows(self, stops: int) -> Rows:
        return Rows(_size_of(self.max_batch), stops=stops, device=self._device)


def _size_of(number: int, sizes: Sequence[int] = SIZES) -> int:
    return next(size for size in sizes if size >= number)


def _launches(steps: int) -> Iterator[int]:
    """In as few as can be, without more than one step in vain."""
    while steps > 0:
        number = MANY if steps >= MANY - 1 else FEW
        yield number
        steps -= number


def _part(ids: Sequence[int], lease: Lease) -> Any:
    """What has to be read of a prompt: tokens, slots and positions."""
    tokens = np.asarray(ids[lease.known : -1], dtype=np.int64)
    slots = np.full(len(tokens), lease.slot)
    return np.stack([tokens, slots, np.arange(lease.known, lease.known + len(tokens))])
