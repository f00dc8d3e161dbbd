"""Random numbers without a generator: each is worked out from a seed, a position and a token.

So what a request is given depends neither on its batch nor on the order of things. The kernels
work out the same numbers with the same integers; what is here is the plain form of it.
"""

from __future__ import annotations

from typing import Any

MASK = 0xFFFFFFFF
GOLDEN, ODD = 0x9E3779B1, 0x85EBCA6B
FIRST, SECOND = 0x7FEB352D, 0x846CA68B
BELOW_ONE = 1 - 2.0**-24
SMALL = 0.01
"""Below it the logarithm of 1 - x is taken from its series, which single precision can hold."""


def gumbel(seeds: Any, positions: Any, vocabulary: int) -> Any:
    """A number for every token of every row; the largest of logits plus these is a fair draw."""
    import torch

    tokens = torch.arange(vocabulary, device=seeds.device)
    first, second = _keys(seeds, positions)
    mixed = _mix((tokens * GOLDEN + first.unsqueeze(1)) & MASK)
    mixed = _mix(mixed ^ second.unsqueeze(1))
    share = ((mixed.float() + 0.5) * 2.0**-32).clamp(max=BELOW_ONE)
    series = share * (1 + share * (0.5 + share / 3))
    return -torch.log(torch.where(share < SMALL, series, -torch.log(1 - share)))


def _keys(seeds: Any, positions: Any) -> tuple[Any, Any]:
    low, high = seeds & MASK, (seeds >> 32) & MASK
    first = _mix(_mix(((positions * GOLDEN) & MASK) ^ low) ^ high)
    return first, _mix((first + ODD) & MASK)


def _mix(bits: Any) -> Any:
    """Every bit of 32 has a say in every other."""
    bits = ((bits ^ (bits >> 16)) * FIRST) & MASK
    bits = ((bits ^ (bits >> 15)) * SECOND) & MASK
    return bits ^ (bits >> 16)


def folded(seed: int) -> int:
    """Any whole number as one of 64 bits with a sign, which is what a tensor holds."""
    return (seed + 2**63) % 2**64 - 2**63
