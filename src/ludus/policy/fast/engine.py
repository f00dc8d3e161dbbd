"""The fast engine: what answers requests instead of the model's own forward pass, where it can.

It decodes with its own copy of the weights, in bfloat16 on a GPU. Whether a model and a machine
can have it is said here in words; who asks, and for what, is `ludus.policy.generate`'s business.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

from ludus.policy.fast.blueprint import Blueprint, blueprint_of
from ludus.policy.fast.cache import Cache
from ludus.policy.fast.machine import Machine
from ludus.policy.fast.matrices import bare, foreign
from ludus.policy.fast.network import Network, Operations
from ludus.policy.fast.session import Session
from ludus.policy.fast.trial import breakdown, mismatch
from ludus.policy.fast.weights import Weights
from ludus.policy.requests import Deliver, More, Request, Wanted, nobody
from ludus.policy.tally import Tally

EXPECTED = 64
"""Rows, where nobody says how many there will be."""


class FastEngine:
    """Answers requests as they come, all that are there in one step. Made by `fast_engine`.

    What it takes on the device stays taken while others compute there: a copy of the weights, and a
    cache of up to a third of what was free, which graphs know by its address.
    """

    def __init__(self, machine: Machine, weights: Weights, blueprint: Blueprint) -> None:
        self.context: int | None = blueprint.context
        self.stats: Tally = machine.stats
        self._machine = machine
        self._weights = weights

    def run(
        self,
        requests: Sequence[Request],
        deliver: Deliver,
        wanted: Wanted = lambda at: True,
        more: More = nobody,
    ) -> None:
        """Answer all of them and those who come meanwhile, each as soon as it is done."""
        import torch

        session = Session(
            self._machine,
            budget=lambda request: request.budget(self.context),
            deliver=deliver,
            wanted=wanted,
            more=more,
        )
        with torch.inference_mode(), _on(self._weights.device):
            session.run(requests)

    def expect(self, *, rows: int, length: int = 1) -> None:
        """So many requests at once, of so many tokens with their replies: room is made at once."""
        self._machine.expect(min(rows, self._machine.max_batch), length)

    def refresh(self) -> None:
        """Take over the weights that the model has now, and forget what the old ones made."""
        with _on(self._weights.device):
            self._weights.sync()
        self._machine.slots.forget()


def fast_engine(
    model: Any, *, max_batch: int, expected: int | None = None, dtype: Any = None
) -> FastEngine | str:
    """An engine for the model, tried out on it; or why it cannot have one.

    Args:
        max_batch: the most requests that are decoded at once.
        expected: how many there will be, if that is known.
        dtype: what it computes in: bfloat16 on a GPU, and float32 elsewhere, if nothing is said.
    """
    blueprint = blueprint_of(model)
    if isinstance(blueprint, str):
        return blueprint
    device = bare(model).model.embed_tokens.weight.device
    reason = foreign(model) or _lacking(device)
    if reason is not None:
        return reason
    with _on(device):
        made = _made(model, blueprint, device, max_batch, dtype)
    if isinstance(made, FastEngine):
        made.expect(rows=expected or EXPECTED)
    return made


def _made(
    model: Any, blueprint: Blueprint, device: Any, max_batch: int, dtype: Any
) -> FastEngine | str:
    import torch

    dtype = dtype or (torch.bfloat16 if device.type == "cuda" else torch.float32)
    weights = Weights(model, blueprint, dtype=dtype)
    network = Network(blueprint, weights, _operations(device))
    cache = Cache(blueprint, bare(model).model.rotary_emb, dtype=dtype, device=device)
    if (reason := mismatch(model, network, cache)) is not None:
        return reason
    machine = Machine(network, cache, max_batch=max_batch)
    return breakdown(machine, blueprint) or FastEngine(machine, weights, blueprint)


def _lacking(device: Any) -> str | None:
    """What the machine does not have."""
    import torch

    if device.type == "cpu":
        return None
    if device.type != "cuda":
        return f"there are no kernels for {device.type}"
    if torch.cuda.get_device_capability(device) < (8, 0):
        return "the GPU has no bfloat16"
    return None if importlib.util.find_spec("triton") else "triton is not installed"


def _operations(device: Any) -> Operations:
    operations: Any
    if device.type == "cuda":
        from ludus.policy.fast import kernels as operations
    else:
        from ludus.policy.fast import reference as operations
    chosen: Operations = operations
    return chosen


def _on(device: Any) -> Any:
    import torch

    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()
