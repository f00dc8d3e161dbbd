"""Keys and values of everything that has been read, in slots of one length, and how they grow.

It is taken once and kept, because captured graphs know it by its addresses. Which slot holds what,
and for whom, is `ludus.policy.triton_engine.prefix_cache`' business.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ludus.policy.triton_engine.model_shape import ModelShape
from ludus.policy.triton_engine.pinned_buffer import PinnedBuffer

MAX_FREE_MEMORY_FRACTION = 0.3
"""Of the memory that is free, the most that is taken."""
CPU_BUDGET_BYTES = 2**30
"""Bytes, where nobody says how much is free."""
MIN_SLOT_TOKENS = 512
COPY_CHUNK_BYTES = 2**28
"""Bytes that are copied at once, as a copy within the cache goes through a place beside it."""


@dataclass(frozen=True, slots=True)
class LayerCache:
    """One layer's part of the cache, and where each row of a batch stands in it."""

    keys: Any
    values: Any
    cos: Any
    sin: Any
    slots: Any
    positions: Any


class KVCache:
    """`slots` of `length` tokens, and one more that takes what nobody will look at."""

    def __init__(self, blueprint: ModelShape, rotary: Any, *, dtype: Any, device: Any) -> None:
        self.num_slots = self.slot_length = 0
        self.keys: Any = None
        self.values: Any = None
        self.cos: Any = None
        self.sin: Any = None
        self._shape = blueprint
        self._rotary = rotary
        self._dtype, self._device = dtype, device
        self._slot_pairs: PinnedBuffer | None = None

    @property
    def scratch_slot(self) -> int:
        return self.num_slots

    def layer_view(self, layer: int, slots: Any, positions: Any) -> LayerCache:
        return LayerCache(
            self.keys[layer], self.values[layer], self.cos, self.sin, slots, positions
        )

    def plan_size(self, slots: int, length: int) -> tuple[int, int]:
        """What to take for so many slots of at least that length: fewer, if memory is short."""
        length = min(
            max(MIN_SLOT_TOKENS, _next_power_of_2(length)), max(self._shape.context_length, length)
        )
        length = max(length, self.slot_length)
        most = int(self._budget_bytes() // (self._bytes_per_token() * length)) - 1
        return max(1, min(slots, most)), length

    def resize(self, slots: int, length: int) -> None:
        """Take that much; what slots hold stays, as far as there is still room for it."""
        import torch

        b = self._shape
        cos, sin = self._rope_tables(length)
        pairs = PinnedBuffer(2 * slots, self._device)
        old = self.keys, self.values
        shape = b.num_layers, slots + 1, b.num_kv_heads, length, b.head_dim
        # Zeros, because what is not a number would not go away when it is multiplied with zero.
        self.keys, self.values = (
            torch.zeros(shape, dtype=self._dtype, device=self._device) for _ in range(2)
        )
        kept, long = min(slots, self.num_slots), min(length, self.slot_length)
        if kept:
            for new, before in zip((self.keys, self.values), old, strict=True):
                new[:, :kept, :, :long] = before[:, :kept, :, :long]
        self.num_slots, self.slot_length = slots, length
        self.cos, self.sin, self._slot_pairs = cos, sin, pairs

    def free(self) -> None:
        """Give everything back."""
        self.num_slots = self.slot_length = 0
        self.keys = self.values = self.cos = self.sin = self._slot_pairs = None

    def copy_prefixes(self, pairs: Sequence[tuple[int, int]], length: int) -> None:
        """For each pair of a source and a target: the source's first tokens, in the target too."""
        assert self._slot_pairs is not None
        number = len(pairs)
        self._slot_pairs.wait()
        self._slot_pairs.host_array[: 2 * number] = [
            slot for each in zip(*pairs, strict=True) for slot in each
        ]
        self._slot_pairs.upload(0, 2 * number)
        sources, targets = self._slot_pairs.device_tensor[: 2 * number].view(2, number)
        step = max(1, COPY_CHUNK_BYTES // (self._bytes_per_token() * max(1, length)))
        for start in range(0, number, step):
            piece = slice(start, start + step)
            for kept in (self.keys, self.values):
                kept[:, targets[piece], :, :length] = kept[:, sources[piece], :, :length]

    def _rope_tables(self, length: int) -> tuple[Any, Any]:
        """How far each position turns a head: by the model's own rule, in single precision."""
        import torch

        places = torch.arange(length, device=self._device).unsqueeze(0)
        cos, sin = self._rotary(torch.zeros(1, device=self._device), places)
        return cos[0].float().contiguous(), sin[0].float().contiguous()

    def _bytes_per_token(self) -> int:
        b = self._shape
        return 2 * b.num_layers * b.num_kv_heads * b.head_dim * int(self._dtype.itemsize)

    def _budget_bytes(self) -> float:
        import torch

        if torch.device(self._device).type != "cuda":
            return CPU_BUDGET_BYTES
        free, _ = torch.cuda.mem_get_info(self._device)
        unused = torch.cuda.memory_reserved(self._device) - torch.cuda.memory_allocated(
            self._device
        )
        own = self._bytes_per_token() * (self.num_slots + 1) * self.slot_length
        return MAX_FREE_MEMORY_FRACTION * float(free + unused + own)


def _next_power_of_2(number: int) -> int:
    return 1 << max(0, number - 1).bit_length()
