"""The KV cache: keys and values in slots of equal length, one slot per sequence.

Captured CUDA graphs hold its addresses, so it is allocated once and rarely resized. `prefix_cache`
records which slot holds which tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import Module

from ludus.policy.device import gpu_memory_share
from ludus.policy.triton_engine.batch_state import PinnedBuffer
from ludus.policy.triton_engine.model_weights import ModelShape

MAX_FREE_MEMORY_FRACTION = 0.3
"""Largest part of the process's share of GPU memory that the cache takes, if it is free."""
CPU_BUDGET_BYTES = 2**30
MIN_SLOT_TOKENS = 512
COPY_CHUNK_BYTES = 2**28
"""A copy within the cache needs a temporary of its size, so large ones are done in chunks."""


@dataclass(frozen=True, slots=True)
class LayerCache:
    """One layer of the cache, with the slot and position of each row of a batch.

    keys, values: [slots, kv_heads, slot_length, head_dim]; cos, sin: [slot_length, head_dim];
    slots, positions: [rows].
    """

    keys: Tensor
    values: Tensor
    cos: Tensor
    sin: Tensor
    slots: Tensor
    positions: Tensor
    window: int = 0
    """The sliding window of the layer; 0: none."""


class KVCache:
    """`num_slots` slots of `slot_length` tokens, and a scratch slot for padding rows."""

    def __init__(
        self, shape: ModelShape, rotary_emb: Module, *, dtype: torch.dtype, device: torch.device
    ) -> None:
        self.num_slots = self.slot_length = 0
        self.keys: Tensor = None
        self.values: Tensor = None
        self._rope: dict[str | None, tuple[Tensor, Tensor]] = {}
        """cos and sin by layer type; the key is None if all layers are alike."""
        self._shape = shape
        self._rotary_emb = rotary_emb
        self._dtype, self._device = dtype, device
        self._slot_pairs: PinnedBuffer | None = None

    @property
    def scratch_slot(self) -> int:
        """Rows that pad a batch write here; nothing reads it."""
        return self.num_slots

    @property
    def padding_row(self) -> list[list[int]]:
        """Token, slot and position of a padding row, [3, 1]."""
        return [[0], [self.scratch_slot], [0]]

    def layer_view(self, layer: int, slots: Tensor, positions: Tensor) -> LayerCache:
        shape = self._shape
        cos, sin = self._rope[shape.rope_types[layer] if shape.rope_types else None]
        window = shape.windows[layer] if shape.windows else 0
        return LayerCache(self.keys[layer], self.values[layer], cos, sin, slots, positions, window)

    def plan_size(self, num_slots: int, slot_length: int) -> tuple[int, int]:
        """(slots, length) to allocate: at least that length, and fewer slots if memory is short."""
        padded = 1 << max(0, slot_length - 1).bit_length()
        limit = max(self._shape.context_length, slot_length)
        length = max(self.slot_length, min(max(MIN_SLOT_TOKENS, padded), limit))
        budget: float = CPU_BUDGET_BYTES
        if torch.device(self._device).type == "cuda":
            allocated = torch.cuda.memory_allocated(self._device)
            unused = torch.cuda.memory_reserved(self._device) - allocated
            free = torch.cuda.mem_get_info(self._device)[0] + unused
            share = gpu_memory_share(self._device) - allocated
            budget = MAX_FREE_MEMORY_FRACTION * (min(free, share) + self.num_bytes)
        affordable = int(budget // (self._bytes_per_token() * length)) - 1
        return max(1, min(num_slots, affordable)), length

    def resize(self, num_slots: int, slot_length: int) -> None:
        """Allocate that size; the content of slots is kept, as far as it fits."""
        # Allocate everything first: if memory runs out, the cache stays as it was.
        rope_positions = torch.arange(slot_length, device=self._device).unsqueeze(0)
        example = torch.zeros(1, device=self._device)
        rope = {
            name: self._rotary_emb(example, rope_positions, *([] if name is None else [name]))
            for name in {*(self._shape.rope_types or [None])}
        }
        slot_pairs = PinnedBuffer(2 * num_slots, self._device)
        old = self.keys, self.values
        shape = self._shape
        size = shape.num_layers, num_slots + 1, shape.num_kv_heads, slot_length, shape.head_dim
        # Zeros, not empty: masked attention weights are 0, and 0 * NaN would be NaN.
        self.keys, self.values = (
            torch.zeros(size, dtype=self._dtype, device=self._device) for _ in range(2)
        )
        kept_slots = min(num_slots, self.num_slots)
        kept_length = min(slot_length, self.slot_length)
        if kept_slots:
            for new, before in zip((self.keys, self.values), old, strict=True):
                new[:, :kept_slots, :, :kept_length] = before[:, :kept_slots, :, :kept_length]
        self.num_slots, self.slot_length = num_slots, slot_length
        self._rope = {
            name: (cos[0].float().contiguous(), sin[0].float().contiguous())
            for name, (cos, sin) in rope.items()
        }
        self._slot_pairs = slot_pairs

    @property
    def num_bytes(self) -> int:
        """The allocated size."""
        return self._bytes_per_token() * (self.num_slots + 1) * self.slot_length

    def free(self) -> None:
        self.num_slots = self.slot_length = 0
        self.keys = self.values = self._slot_pairs = None
        self._rope = {}

    def copy_prefixes(self, pairs: Sequence[tuple[int, int]], length: int) -> None:
        """Copy the first `length` tokens from slot to slot, for each pair (source, target)."""
        assert self._slot_pairs is not None
        number = len(pairs)
        self._slot_pairs.wait()
        self._slot_pairs.host_array[: 2 * number] = [
            slot for column in zip(*pairs, strict=True) for slot in column
        ]
        self._slot_pairs.upload(0, 2 * number)
        sources, targets = self._slot_pairs.device_tensor[: 2 * number].view(2, number)
        step = max(1, COPY_CHUNK_BYTES // (self._bytes_per_token() * max(1, length)))
        for start in range(0, number, step):
            chunk = slice(start, start + step)
            for tensor in (self.keys, self.values):
                tensor[:, targets[chunk], :, :length] = tensor[:, sources[chunk], :, :length]

    def _bytes_per_token(self) -> int:
        shape = self._shape
        per_layer = shape.num_kv_heads * shape.head_dim * int(self._dtype.itemsize)
        return 2 * shape.num_layers * per_layer
