"""Whether this way of decoding gives what the model itself gives, and the machine bears it.

Asked once, at the start, where it is not too late to decode another way.
"""

from __future__ import annotations

import math
from typing import Any

from ludus.policy.fast.blueprint import Blueprint
from ludus.policy.fast.cache import Cache
from ludus.policy.fast.machine import MANY, Machine
from ludus.policy.fast.network import Network
from ludus.policy.fast.rows import Line
from ludus.policy.tally import Tally

LENGTHS = (200, 9)
"""Several blocks of keys, and less than one."""
SINGLE, HALF = 1e-3, 0.1
"""How far logits may lie off, as a share of how much they vary: in single and in half precision."""


def mismatch(model: Any, network: Network, cache: Cache) -> str | None:
    """How far this way lies off the model's own, if it is too far."""
    import torch

    shape = network.blueprint
    rows = [torch.tensor(_text(shape, length)) for length in LENGTHS]
    with torch.inference_mode():
        cache.resize(len(rows), max(map(len, rows)))
        theirs = torch.stack([_theirs(model, row) for row in rows]).float()
        _read(network, cache, rows)
        ours = [_stepped(network, cache, rows, splits) for splits in (1, 2)]
        cache.drop()
    far = [(each - theirs).square().mean().sqrt() / theirs.std().clamp(min=1e-6) for each in ours]
    exact = network.weights.dtype == model.dtype == torch.float32
    bound = SINGLE if exact else HALF
    # Put this way round, what is not a number is a mismatch too.
    odd = [float(each) for each in far if not each <= bound]
    return f"its logits came out {odd[0]:.1%} off the model's own" if odd else None


def _text(shape: Blueprint, length: int) -> list[int]:
    import torch

    made = torch.Generator().manual_seed(length)
    # As long as the model can bear, with room for a few words more.
    length = max(2, min(length, shape.context - 2 * MANY))
    ids: list[int] = torch.randint(shape.vocabulary, (length,), generator=made).tolist()
    return ids


def _theirs(model: Any, row: Any) -> Any:
    training = model.training
    model.eval()
    try:
        return model(row.unsqueeze(0).to(model.device)).logits[0, -1]
    finally:
        model.train(training)


def _read(network: Network, cache: Cache, rows: list[Any]) -> None:
    import torch

    device = network.weights.device
    slots = torch.cat([torch.full((len(row) - 1,), at) for at, row in enumerate(rows)])
    positions = torch.cat([torch.arange(len(row) - 1) for row in rows])
    tokens = torch.cat([row[:-1] for row in rows])
    network.read(tokens.to(device), slots.to(device), positions.to(device), cache)


def _stepped(network: Network, cache: Cache, rows: list[Any], splits: int) -> Any:
    import torch

    device = network.weights.device
    last = torch.stack([row[-1] for row in rows]).to(device)
    ends = torch.tensor([len(row) - 1 for row in rows], device=device)
    return network.step(last, torch.arange(len(rows), device=device), ends, cache, splits=splits)


def breakdown(machine: Machine, blueprint: Blueprint) -> str | None:
    """What a reply of a few words comes to, if not to words: read, recorded, replayed and drawn.

    What a driver or a compiler does not take is raised here, and not in the midst of a run.
    """
    import torch

    ids = tuple(_text(blueprint, LENGTHS[0]))
    with torch.inference_mode():
        machine.prepare(1, len(ids) + 2 * MANY)
        (lease,) = machine.admit([ids])
        line = Line(ids[-1], len(ids) - 1, lease.slot, 1, 2 * MANY, 1.0, 1.0, 0, ())
        first, again = _drawn(machine, line), _drawn(machine, line)
        machine.drop()
    machine.stats = Tally()
    if len(first) < 2 * MANY or not all(map(math.isfinite, first)):
        return "what it draws is no token"
    same = [math.isclose(*pair, abs_tol=SINGLE) for pair in zip(first, again, strict=False)]
    return None if all(same) and len(same) == len(first) else "it does not draw the same again"


def _drawn(machine: Machine, line: Line) -> list[float]:
    """What its words were worth. At first they are worked out and recorded, and then replayed."""
    machine.load([line])
    logprobs: list[float] = []
    for _ in range(2):
        machine.advance(MANY)
        look = machine.look()
        logprobs += look.logprobs[0][: look.counts[0]]
    return logprobs
