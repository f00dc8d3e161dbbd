"""The fast engine: what answers requests instead of the model's own forward pass, where it can.

It decodes with its own copy of the weights, in bfloat16 on a GPU. Whether a model and a machine
can have it is said here in words; who asks, and for what, is `ludus.policy.engine.batcher`'s business.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

from ludus.policy.engine.decode_stats import DecodeStats
from ludus.policy.engine.engine_api import (
    DeliverCompletion,
    IsWanted,
    PollRequests,
    Request,
    no_more_requests,
)
from ludus.policy.triton_engine.kv_cache import KVCache
from ludus.policy.triton_engine.linear_weights import base_model, unsupported_module
from ludus.policy.triton_engine.llama_forward import LlamaForward, Operations
from ludus.policy.triton_engine.model_runner import ModelRunner
from ludus.policy.triton_engine.model_shape import ModelShape, read_model_shape
from ludus.policy.triton_engine.packed_weights import PackedWeights
from ludus.policy.triton_engine.scheduler import Scheduler
from ludus.policy.triton_engine.self_test import check_decoding, check_logits

DEFAULT_EXPECTED_ROWS = 64
"""Rows, where nobody says how many there will be."""


class TritonEngine:
    """Answers requests as they come, all that are there in one step. Made by `fast_engine`.

    What it takes on the device stays taken while others compute there: a copy of the weights, and a
    cache of up to a third of what was free, which graphs know by its address.
    """

    def __init__(self, machine: ModelRunner, weights: PackedWeights, blueprint: ModelShape) -> None:
        self.context_length: int | None = blueprint.context_length
        self.stats: DecodeStats = machine.stats
        self._runner = machine
        self._weights = weights

    def run(
        self,
        requests: Sequence[Request],
        deliver: DeliverCompletion,
        is_wanted: IsWanted = lambda at: True,
        poll_requests: PollRequests = no_more_requests,
    ) -> None:
        """Answer all of them and those who come meanwhile, each as soon as it is done."""
        import torch

        session = Scheduler(
            self._runner,
            budget=lambda request: request.max_new_tokens(self.context_length),
            deliver=deliver,
            wanted=is_wanted,
            more=poll_requests,
        )
        with torch.inference_mode(), _device_guard(self._weights.device):
            session.run(requests)

    def reserve_capacity(self, *, rows: int, length: int = 1) -> None:
        """So many requests at once, of so many tokens with their replies: room is made at once."""
        self._runner.reserve_capacity(min(rows, self._runner.max_batch), length)

    def refresh(self) -> None:
        """Take over the weights that the model has now, and forget what the old ones made."""
        with _device_guard(self._weights.device):
            self._weights.sync()
        self._runner.prefix_cache.clear()


def build_triton_engine(
    model: Any, *, max_batch: int, expected: int | None = None, dtype: Any = None
) -> TritonEngine | str:
    """An engine for the model, tried out on it; or why it cannot have one.

    Args:
        max_batch: the most requests that are decoded at once.
        expected: how many there will be, if that is known.
        dtype: what it computes in: bfloat16 on a GPU, and float32 elsewhere, if nothing is said.
    """
    blueprint = read_model_shape(model)
    if isinstance(blueprint, str):
        return blueprint
    device = base_model(model).model.embed_tokens.weight.device
    reason = unsupported_module(model) or _unsupported_device(device)
    if reason is not None:
        return reason
    with _device_guard(device):
        made = _build(model, blueprint, device, max_batch, dtype)
    if isinstance(made, TritonEngine):
        made.reserve_capacity(rows=expected or DEFAULT_EXPECTED_ROWS)
    return made


def _build(
    model: Any, blueprint: ModelShape, device: Any, max_batch: int, dtype: Any
) -> TritonEngine | str:
    import torch

    dtype = dtype or (torch.bfloat16 if device.type == "cuda" else torch.float32)
    weights = PackedWeights(model, blueprint, dtype=dtype)
    network = LlamaForward(blueprint, weights, _select_operations(device))
    cache = KVCache(blueprint, base_model(model).model.rotary_emb, dtype=dtype, device=device)
    if (reason := check_logits(model, network, cache)) is not None:
        return reason
    machine = ModelRunner(network, cache, max_batch=max_batch)
    return check_decoding(machine, blueprint) or TritonEngine(machine, weights, blueprint)


def _unsupported_device(device: Any) -> str | None:
    """What the machine does not have."""
    import torch

    if device.type == "cpu":
        return None
    if device.type != "cuda":
        return f"there are no kernels for {device.type}"
    if torch.cuda.get_device_capability(device) < (8, 0):
        return "the GPU has no bfloat16"
    return None if importlib.util.find_spec("triton") else "triton is not installed"


def _select_operations(device: Any) -> Operations:
    operations: Any
    if device.type == "cuda":
        from ludus.policy.triton_engine import kernels as operations
    else:
        from ludus.policy.triton_engine import reference_ops as operations
    chosen: Operations = operations
    return chosen


def _device_guard(device: Any) -> Any:
    import torch

    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()
