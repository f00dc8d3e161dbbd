"""Keys and values of everything that has been read, in slots of one length, and how they grow.

It is taken once and kept, because captured graphs know it by its addresses. Which slot holds what,
and for whom, is `ludus.policy.fast.slots`' business.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ludus.policy.fast.blueprint import Blueprint
from ludus.policy.fast.passage import Passage

SHARE = 0.3
"""Of the memory that is free, the most that is taken."""
ON_A_CPU = 2**30
"""Bytes, where nobody says how much is free."""
SHORTEST = 512
PIECE = 2**28
"""Bytes that are copied at once, as a copy within the cache goes through a place beside it."""


@dataclass(frozen=True, slots=True)
class Room:
    """One layer's part of the cache, and where each row of a batch stands in it."""

    keys: Any
    values: Any
    cos: Any
    sin: Any
    slots: Any
    positions: Any


class Cache:
    """`slots` of `length` tokens, and one more that takes what nobody will look at."""

    def __init__(self, blueprint: Blueprint, rotary: Any, *, dtype: Any, device: Any) -> None:
        self.slots = self.length = 0
        self.keys: Any = None
        self.values: Any = None
        self.cos: Any = None
        self.sin: Any = None
        self._blueprint = blueprint
        self._rotary = rotary
        self._dtype, self._device = dtype, device
        self._pairs: Passage | None = None

    @property
    def scratch(self) -> int:
        return self.slots

    def room(self, layer: int, slots: Any, positions: Any) -> Room:
        return Room(self.keys[layer], self.values[layer], self.cos, self.sin, slots, positions)

    def fitting(self, slots: int, length: int) -> tuple[int, int]:
        """What to take for so many slots of at least that length: fewer, if memory is short."""
        length = min(max(SHORTEST, _power(length)), max(self._blueprint.context, length))
        length = max(length, self.length)
        most = int(self._allowed() // (self._bytes_each() * length)) - 1
        return max(1, min(slots, most)), length

    def resize(self, slots: int, length: int) -> None:
        """Take that much; what slots hold stays, as far as there is still room for it."""
        import torch

        b = self._blueprint
        cos, sin = self._tables(length)
        pairs = Passage(2 * slots, self._device)
        old = self.keys, self.values
        shape = b.layers, slots + 1, b.kv_heads, length, b.head_dim
        # Zeros, because what is not a number would not go away when it is multiplied with zero.
        self.keys, self.values = (
            torch.zeros(shape, dtype=self._dtype, device=self._device) for _ in range(2)
        )
        kept, long = min(slots, self.slots), min(length, self.length)
        if kept:
            for new, before in zip((self.keys, self.values), old, strict=True):
                new[:, :kept, :, :long] = before[:, :kept, :, :long]
        self.slots, self.length = slots, length
        self.cos, self.sin, self._pairs = cos, sin, pairs

    def drop(self) -> None:
        """Give everything back."""
        self.slots = self.length = 0
        self.keys = self.values = self.cos = self.sin = self._pairs = None

    def copy(self, pairs: Sequence[tuple[int, int]], length: int) -> None:
        """For each pair of a source and a target: the source's first tokens, in the target too."""
        assert self._pairs is not None
        number = len(pairs)
        self._pairs.wait()
        self._pairs.array[: 2 * number] = [
            slot for each in zip(*pairs, strict=True) for slot in each
        ]
        self._pairs.send(0, 2 * number)
        sources, targets = self._pairs.there[: 2 * number].view(2, number)
        step = max(1, PIECE // (self._bytes_each() * max(1, length)))
        for start in range(0, number, step):
            piece = slice(start, start + step)
            for kept in (self.keys, self.values):
                kept[:, targets[piece], :, :length] = kept[:, sources[piece], :, :length]

    def _tables(self, length: int) -> tuple[Any, Any]:
        """How far each position turns a head: by the model's own rule, in single precision."""
        import torch

        places = torch.arange(length, device=self._device).unsqueeze(0)
        cos, sin = self._rotary(torch.zeros(1, device=self._device), places)
        return cos[0].float().contiguous(), sin[0].float().contiguous()

    def _bytes_each(self) -> int:
        b = self._blueprint
        return 2 * b.layers * b.kv_heads * b.head_dim * int(self._dtype.itemsize)

    def _allowed(self) -> float:
        import torch

        if torch.device(self._device).type != "cuda":
            return ON_A_CPU
        free, _ = torch.cuda.mem_get_info(self._device)
        unused = torch.cuda.memory_reserved(self._device) - torch.cuda.memory_allocated(
            self._device
        )
        own = self._bytes_each() * (self.slots + 1) * self.length
        return SHARE * float(free + unused + own)


def _power(number: int) -> int:
    return 1 << max(0, number - 1).bit_length()
