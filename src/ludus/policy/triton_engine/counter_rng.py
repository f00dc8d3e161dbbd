"""Random numbers without a generator: each is worked out from a seed, a position and a token.

So what a request is given depends neither on its batch nor on the order of things. The kernels
work out the same numbers with the same integers; what is here is the plain form of it.
"""

from __future__ import annotations

from typing import Any

MASK_32 = 0xFFFFFFFF
GOLDEN_RATIO_32, SECOND_KEY_OFFSET = 0x9E3779B1, 0x85EBCA6B
MIX_MULTIPLIER_1, MIX_MULTIPLIER_2 = 0x7FEB352D, 0x846CA68B
MAX_UNIFORM = 1 - 2.0**-24
SERIES_THRESHOLD = 0.01
"""Below it the logarithm of 1 - x is taken from its series, which single precision can hold."""


def gumbel_noise(seeds: Any, positions: Any, vocab_size: int) -> Any:
    """A number for every token of every row; the largest of logits plus these is a fair draw."""
    import torch

    tokens = torch.arange(vocab_size, device=seeds.device)
    first, second = _derive_keys(seeds, positions)
    mixed = _mix32((tokens * GOLDEN_RATIO_32 + first.unsqueeze(1)) & MASK_32)
    mixed = _mix32(mixed ^ second.unsqueeze(1))
    share = ((mixed.float() + 0.5) * 2.0**-32).clamp(max=MAX_UNIFORM)
    series = share * (1 + share * (0.5 + share / 3))
    return -torch.log(torch.where(share < SERIES_THRESHOLD, series, -torch.log(1 - share)))


def _derive_keys(seeds: Any, positions: Any) -> tuple[Any, Any]:
    low, high = seeds & MASK_32, (seeds >> 32) & MASK_32
    first = _mix32(_mix32(((positions * GOLDEN_RATIO_32) & MASK_32) ^ low) ^ high)
    return first, _mix32((first + SECOND_KEY_OFFSET) & MASK_32)


def _mix32(bits: Any) -> Any:
    """Every bit of 32 has a say in every other."""
    bits = ((bits ^ (bits >> 16)) * MIX_MULTIPLIER_1) & MASK_32
    bits = ((bits ^ (bits >> 15)) * MIX_MULTIPLIER_2) & MASK_32
    return bits ^ (bits >> 16)


def to_int64(seed: int) -> int:
    """Any whole number as one of 64 bits with a sign, which is what a tensor holds."""
    return (seed + 2**63) % 2**64 - 2**63
