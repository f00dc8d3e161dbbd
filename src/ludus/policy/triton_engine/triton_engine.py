"""The Triton engine: answers requests in place of the model's own forward pass, where it can.

It decodes with its own copy of the weights, in bfloat16 on a GPU. `build_triton_engine` says
whether a model and a machine are supported.
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


class TritonEngine:
    """Answers requests with continuous batching. Built by `build_triton_engine`.

    It keeps its device memory also while it is idle: a copy of the weights, and a KV cache of up to
    a third of the memory that was free.
    """

    def __init__(self, runner: ModelRunner, weights: PackedWeights, shape: ModelShape) -> None:
        self.context_length: int | None = shape.context_length
        self.stats: DecodeStats = runner.stats
        self._runner = runner
        self._weights = weights

    def run(
        self,
        requests: Sequence[Request],
        deliver: DeliverCompletion,
        is_wanted: IsWanted = lambda index: True,
        poll_requests: PollRequests = no_more_requests,
    ) -> None:
        """Answer these requests and those polled meanwhile; deliver each as soon as it is done."""
        import torch

        scheduler = Scheduler(
            self._runner,
            context_length=self.context_length,
            deliver=deliver,
            is_wanted=is_wanted,
            poll_requests=poll_requests,
        )
        with torch.inference_mode(), _engine_device_guard(self._weights.device):
            scheduler.run(requests)

    def reserve_capacity(self, *, rows: int, length: int = 1) -> None:
        """Expect this many requests at once, of this many tokens including their completions."""
        self._runner.reserve_capacity(min(rows, self._runner.max_batch), length)

    def refresh(self) -> None:
        """Copy the model's current weights, and drop what the old ones computed."""
        with _engine_device_guard(self._weights.device):
            self._weights.sync()
        self._runner.prefix_cache.clear()

    def free_cache(self, *, larger_than: int = 0) -> None:
        """Free the KV cache and the graphs that read it, if it takes more bytes than that."""
        if self._runner.cache.num_bytes > larger_than:
            with _engine_device_guard(self._weights.device):
                self._runner.free_cache()


def build_triton_engine(
    model: Any, *, max_batch: int, expected: int | None = None, dtype: Any = None
) -> TritonEngine | str:
    """An engine for the model that has passed its self-test, or the reason why there is none.

    Args:
        max_batch: the most requests that are decoded at once.
        expected: how many there will be, if known.
        dtype: defaults to bfloat16 on a GPU and float32 elsewhere.
    """
    import torch

    shape = read_model_shape(model)
    if isinstance(shape, str):
        return shape
    device = base_model(model).model.embed_tokens.weight.device
    reason = unsupported_module(model) or _unsupported_device(device)
    if reason is not None:
        return reason
    dtype = dtype or (torch.bfloat16 if device.type == "cuda" else torch.float32)
    operations: Operations
    if device.type == "cuda":
        from ludus.policy.triton_engine.triton_ops import TritonOps

        operations = TritonOps()
    else:
        from ludus.policy.triton_engine.reference_ops import ReferenceOps

        operations = ReferenceOps()
    with _engine_device_guard(device):
        weights = PackedWeights(model, shape, dtype=dtype)
        forward = LlamaForward(shape, weights, operations)
        cache = KVCache(shape, base_model(model).model.rotary_emb, dtype=dtype, device=device)
        if (reason := check_logits(model, forward, cache)) is not None:
            return reason
        runner = ModelRunner(forward, cache, max_batch=max_batch)
        if (reason := check_decoding(runner, shape)) is not None:
            return reason
    engine = TritonEngine(runner, weights, shape)
    engine.reserve_capacity(rows=expected or DEFAULT_EXPECTED_ROWS)
    return engine


def _unsupported_device(device: Any) -> str | None:
    """What the device lacks, if anything."""
    import torch

    if device.type == "cpu":
        return None
    if device.type != "cuda":
        return f"there are no kernels for {device.type}"
    if torch.cuda.get_device_capability(device) < (8, 0):
        return "the GPU has no bfloat16"
    return None if importlib.util.find_spec("triton") else "triton is not installed"


def _engine_device_guard(device: Any) -> Any:
    """Make it the current device while the engine works, as Triton launches kernels there."""
    import torch

    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()
