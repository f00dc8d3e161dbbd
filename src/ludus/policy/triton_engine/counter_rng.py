"""Counter-based random numbers: each is a hash of a seed, a position and a token.

There is no generator state, so a completion depends neither on its batch nor on the order in which
requests are scheduled. `sampling_kernels` computes the same numbers with the same integers; this is
the torch version.
"""

from __future__ import annotations

from typing import Any

MASK_32 = 0xFFFFFFFF
GOLDEN_RATIO_32, SECOND_KEY_OFFSET = 0x9E3779B1, 0x85EBCA6B
MIX_MULTIPLIER_1, MIX_MULTIPLIER_2 = 0x7FEB352D, 0x846CA68B
"""Constants of the "lowbias32" integer hash."""
MAX_UNIFORM = 1 - 2.0**-24
SERIES_THRESHOLD = 0.01
"""Below it, -log(1 - u) is computed from its series: 1 - u would lose u's digits in float32."""


def gumbel_noise(seeds: Any, positions: Any, vocab_size: int) -> Any:
    """Gumbel noise [rows, vocab_size]; the argmax of logits plus noise is a sample of softmax."""
    import torch

    tokens = torch.arange(vocab_size, device=seeds.device)
    low, high = seeds & MASK_32, (seeds >> 32) & MASK_32
    key_1 = _mix32(_mix32(((positions * GOLDEN_RATIO_32) & MASK_32) ^ low) ^ high)
    key_2 = _mix32((key_1 + SECOND_KEY_OFFSET) & MASK_32)
    bits = _mix32((tokens * GOLDEN_RATIO_32 + key_1.unsqueeze(1)) & MASK_32)
    bits = _mix32(bits ^ key_2.unsqueeze(1))
    u = ((bits.float() + 0.5) * 2.0**-32).clamp(max=MAX_UNIFORM)
    series = u * (1 + u * (0.5 + u / 3))
    return -torch.log(torch.where(u < SERIES_THRESHOLD, series, -torch.log(1 - u)))


def _mix32(bits: Any) -> Any:
    """Integer hash of 32 bits (held in int64)."""
    bits = ((bits ^ (bits >> 16)) * MIX_MULTIPLIER_1) & MASK_32
    bits = ((bits ^ (bits >> 15)) * MIX_MULTIPLIER_2) & MASK_32
    return bits ^ (bits >> 16)


def to_int64(seed: int) -> int:
    """Wrap any integer into the range of a signed 64-bit integer."""
    return (seed + 2**63) % 2**64 - 2**63
