"""Whether this way of decoding gives what the model itself gives: both are asked, once, at the
start."""

from __future__ import annotations

from typing import Any

from ludus.policy.fast.cache import Cache
from ludus.policy.fast.network import Network

LENGTHS = (24, 9)
SINGLE, HALF = 1e-3, 0.1
"""How far logits may lie off, as a share of how much they vary: in single and in half precision."""


def mismatch(model: Any, network: Network, cache: Cache) -> str | None:
    """How far this way lies off the model's own, if it is too far."""
    import torch

    made = torch.Generator().manual_seed(0)
    size = network.blueprint.vocabulary
    rows = [torch.randint(size, (length,), generator=made) for length in LENGTHS]
    with torch.inference_mode():
        cache.resize(len(rows), max(LENGTHS))
        theirs = torch.stack([_theirs(model, row) for row in rows]).float()
        ours = _ours(network, cache, rows)
        cache.drop()
    apart = float((ours - theirs).square().mean().sqrt() / theirs.std().clamp(min=1e-6))
    exact = network.weights.dtype == model.dtype == torch.float32
    bound = SINGLE if exact else HALF
    # Put this way round, what is not a number is a mismatch too.
    return None if apart <= bound else f"its logits came out {apart:.1%} off the model's own"


def _theirs(model: Any, row: Any) -> Any:
    training = model.training
    model.eval()
    try:
        return model(row.unsqueeze(0).to(model.device)).logits[0, -1]
    finally:
        model.train(training)


def _ours(network: Network, cache: Cache, rows: list[Any]) -> Any:
    import torch

    device = network.weights.device
    slots = torch.cat([torch.full((len(row) - 1,), at) for at, row in enumerate(rows)])
    positions = torch.cat([torch.arange(len(row) - 1) for row in rows])
    tokens = torch.cat([row[:-1] for row in rows])
    network.read(tokens.to(device), slots.to(device), positions.to(device), cache)
    last = torch.stack([row[-1] for row in rows]).to(device)
    ends = torch.tensor([len(row) - 1 for row in rows], device=device)
    return network.step(last, torch.arange(len(rows), device=device), ends, cache, splits=1)
