"""A model on its device: the cache, the slots, the rows of a batch, and the steps that move them.

It reads prompts and launches steps in the sizes that it has graphs for. Who asked for what, and
when a reply has ended, is `ludus.policy.fast.session`'s business.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from ludus.policy.fast.cache import Cache
from ludus.policy.fast.cut import least_kept
from ludus.policy.fast.graphs import Eager, Graphs
from ludus.policy.fast.network import Network
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

SIZES = (1, 2, 4, 8, 16, 32, 64, 96, 128, 192, 256, 384, 512, 768, 1024)
"""Rows of a step; a batch is filled up to the next of them."""
READ_AT_ONCE = 2048
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
        self._network = network
        self._device = network.weights.device
        self._graphs = Graphs() if self._device.type == "cuda" else Eager()
        self.tally = Tally()
        self._rows = self._made_rows(8)
        self._reading: Any = None
        self._lines: Sequence[Line] = ()
        self._size = 0

    def prepare(self, number: int, length: int) -> None:
        """See to it that there are so many slots, and as long, if memory and those at work let."""
        slots, now = min(number, self.max_batch), self.cache
        if slots <= now.slots and length <= now.length:
            return
        wanted = max(now.slots, min(self.max_batch, 2 * _size_of(slots)))
        wanted, length = now.fitting(wanted, max(length, now.length))
        if wanted <= now.slots and length <= now.length:
            return
        if wanted < now.slots:
            # Those that would go may be in use; whoever needs longer ones waits until none is.
            if self.slots.free < now.slots:
                return
            now.drop()
            self.slots = Slots()
        self._graphs.forget()
        now.resize(wanted, length)
        self.slots.resize(wanted, length)

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
        for wave in sorted({lease.wave for lease in leases}):
            self._fill([pair for pair in placed if pair[0].wave == wave])
        return leases

    def _fill(self, placed: Sequence[tuple[Lease, tuple[int, ...]]]) -> None:
        copies = [(lease.source, lease.slot) for lease, _ in placed if lease.source is not None]
        if copies:
            longest = max(lease.known for lease, _ in placed if lease.source is not None)
            self.cache.copy([(a, b) for a, b in copies], longest)
        parts = [_part(ids, lease) for lease, ids in placed]
        self._read(np.concatenate(parts, axis=1))
        # The last token of each is read by the first step.
        self.tally.read += sum(part.shape[1] + 1 for part in parts)
        self.tally.reused += sum(lease.known for lease, _ in placed)

    def _read(self, tokens: Any) -> None:
        import torch

        for start in range(0, tokens.shape[1], READ_AT_ONCE):
            piece = tokens[:, start : start + READ_AT_ONCE]
            number = piece.shape[1]
            size = max(16, 1 << (number - 1).bit_length())
            padded = np.zeros((3, size), dtype=np.int64)
            padded[1] = self.cache.scratch
            padded[:, :number] = piece
            if self._reading is None:
                shape = 3, READ_AT_ONCE
                self._reading = torch.zeros(shape, dtype=torch.int64, device=self._device)
            self._reading[:, :size].copy_(torch.from_numpy(padded))
            self._graphs.run(("read", size), partial(self._read_pass, size))

    def _read_pass(self, size: int) -> None:
        tokens, slots, positions = self._reading[:, :size]
        self._network.read(tokens, slots, positions, self.cache)

    def load(self, lines: Sequence[Line]) -> None:
        """These are the rows from now on."""
        most = max(len(line.stops) for line in lines)
        if most > self._rows.stops.shape[1]:
            self._graphs.forget()
            self._rows = self._made_rows(1 << (most - 1).bit_length())
        self._rows.load(lines, scratch=self.cache.scratch)
        self._lines, self._size = lines, _size_of(len(lines))

    def advance(self, steps: int, *, longest: int) -> None:
        """Launch so many steps; nothing is waited for."""
        splits = self._splits(longest)
        cut = any(line.cut for line in self._lines)
        for _ in range(steps):
            if cut:
                self._cut_step(splits)
            else:
                self._graphs.run(("step", self._size, splits), partial(self._step, splits))

    def look(self, steps: int) -> Look:
        """Wait for the steps launched, and see what came of them."""
        seen = self._rows.look(len(self._lines), steps)
        self._rows.again()
        return seen

    def _step(self, splits: int) -> None:
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

    def _splits(self, longest: int) -> int:
        heads = self._size * self._network.blueprint.kv_heads
        most = min(PROGRAMS // heads, longest // SPLIT_LENGTH, 32)
        return 1 << max(0, most.bit_length() - 1)

    def _made_rows(self, stops: int) -> Rows:
        return Rows(_size_of(self.max_batch), stops=stops, device=self._device)


def _size_of(number: int) -> int:
    return next(size for size in SIZES if size >= number)


def _part(ids: Sequence[int], lease: Lease) -> Any:
    """What has to be read of a prompt: tokens, slots and positions."""
    tokens = np.asarray(ids[lease.known : -1], dtype=np.int64)
    slots = np.full(len(tokens), lease.slot)
    return np.stack([tokens, slots, np.arange(lease.known, lease.known + len(tokens))])
