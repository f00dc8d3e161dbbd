"""The Triton engine: answers requests in place of the model's own forward pass, if it can.

It decodes with its own copy of the weights, in bfloat16 on a GPU. `build_triton_engine` says
whether a model and a machine are supported.
"""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from ludus.policy.engine.engine_api import (
    DecodeStats,
    DeliverCompletion,
    IsWanted,
    PollRequests,
    Request,
    no_more_requests,
)
from ludus.policy.triton_engine.batch_state import RowState
from ludus.policy.triton_engine.cuda_graphs import LONG_LAUNCH_STEPS
from ludus.policy.triton_engine.kv_cache import KVCache
from ludus.policy.triton_engine.llama_forward import LlamaForward
from ludus.policy.triton_engine.model_runner import ModelRunner
from ludus.policy.triton_engine.model_weights import (
    ModelShape,
    PackedWeights,
    base_model,
    read_model_shape,
)
from ludus.policy.triton_engine.reference_ops import ReferenceOps
from ludus.policy.triton_engine.scheduler import Scheduler

PROMPT_LENGTHS = (200, 9)
"""Prompt lengths: several blocks of cached tokens, and less than one block."""
FLOAT32_TOLERANCE, BFLOAT16_TOLERANCE = 1e-3, 0.02
"""Largest root-mean-square error of the logits, relative to their standard deviation."""
MAX_ROUNDINGS = 3
"""In 16 bits it may also be this multiple of the rounding error of the model itself."""
_NUM_TOKENS = 2 * LONG_LAUNCH_STEPS
"""Tokens to decode: one captured launch and one replayed launch."""


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
        """Answer these requests and polled ones; deliver each as soon as it is done."""
        scheduler = Scheduler(self._runner, self.context_length, deliver, is_wanted, poll_requests)
        with torch.inference_mode(), _engine_device_guard(self._weights.device):
            scheduler.run(requests)

    def refresh(self) -> None:
        """Copy the model's current weights, and drop results of the old ones."""
        with _engine_device_guard(self._weights.device):
            self._weights.sync()
        self._runner.prefix_cache.clear()

    def free_cache(self, *, larger_than: int = 0) -> None:
        """Free the KV cache and its graphs if it takes more than `larger_than` bytes."""
        if self._runner.cache.num_bytes > larger_than:
            with _engine_device_guard(self._weights.device):
                self._runner.free_cache()


def build_triton_engine(
    model: PreTrainedModel, *, max_batch: int, dtype: torch.dtype | None = None
) -> TritonEngine | str:
    """An engine for the model that has passed its self-test, or the reason why there is none.

    Args:
        max_batch: the most requests that are decoded at once.
        dtype: defaults to bfloat16 on a GPU and float32 elsewhere.
    """
    shape = read_model_shape(model)
    if isinstance(shape, str):
        return shape
    device = base_model(model).model.embed_tokens.weight.device
    if device.type not in ("cpu", "cuda"):
        return f"there are no kernels for {device.type}"
    if device.type == "cuda" and torch.cuda.get_device_capability(device) < (8, 0):
        return "the GPU has no bfloat16"
    if device.type == "cuda" and importlib.util.find_spec("triton") is None:
        return "triton is not installed"
    dtype = dtype or (torch.bfloat16 if device.type == "cuda" else torch.float32)
    operations = ReferenceOps()
    if device.type == "cuda":
        from ludus.policy.triton_engine.triton_ops import TritonOps

        operations = TritonOps()
    with _engine_device_guard(device):
        weights = PackedWeights(model, dtype=dtype)
        forward = LlamaForward(shape, weights, operations)
        cache = KVCache(shape, base_model(model).model.rotary_emb, dtype=dtype, device=device)
        if (reason := check_logits(model, forward, cache)) is not None:
            return reason
        runner = ModelRunner(forward, cache, max_batch=max_batch)
        if (reason := check_decoding(runner, shape)) is not None:
            return reason
    return TritonEngine(runner, weights, shape)


def _engine_device_guard(device: torch.device) -> AbstractContextManager[None]:
    """Make it the current device, on which Triton launches kernels."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


def check_logits(model: PreTrainedModel, forward: LlamaForward, cache: KVCache) -> str | None:
    """Compare the engine's logits with the model's own; returns the problem, if any."""
    device = forward.weights.device
    prompts = [torch.tensor(_random_ids(forward.shape, length)) for length in PROMPT_LENGTHS]
    # One slot per prompt. All but the last tokens are prefilled, the last ones decoded.
    cache.resize(len(prompts), max(map(len, prompts)))
    rows = [forward.prompt_rows(ids[:-1].tolist(), slot, cache) for slot, ids in enumerate(prompts)]
    tokens, slots, positions = torch.from_numpy(np.concatenate(rows, axis=1)).to(device)
    last_tokens = torch.stack([ids[-1] for ids in prompts]).to(device)
    last_slots = torch.arange(len(prompts), device=device)
    last_positions = torch.tensor([len(ids) - 1 for ids in prompts], device=device)
    training = model.training
    model.eval()
    with torch.inference_mode():
        try:
            expected = _last_logits(model, prompts)
            with torch.autocast(device.type, _other_half(model.dtype)):
                rounded = _last_logits(model, prompts)
        finally:
            model.train(training)
        forward.prefill(tokens, slots, positions, cache)
        logits = [
            forward.decode(last_tokens, last_slots, last_positions, cache, splits=splits)
            for splits in (1, 2)
        ]
        cache.free()
    # Softmax ignores a common offset of a token's logits, which rounding affects most.
    expected, *others = (
        each - each.mean(-1, keepdim=True) for each in (expected, rounded, *logits)
    )
    scale = expected.std().clamp(min=1e-6)
    rounding, *errors = (float((each - expected).square().mean().sqrt() / scale) for each in others)
    exact = forward.weights.dtype == model.dtype == torch.float32
    tolerance = FLOAT32_TOLERANCE if exact else max(BFLOAT16_TOLERANCE, MAX_ROUNDINGS * rounding)
    # "not <=" rather than ">": NaN fails too.
    too_large = [error for error in errors if not error <= tolerance]
    if not too_large:
        return None
    return f"its logits came out {too_large[0]:.1%} off the model's own ({tolerance:.1%} allowed)"


def _last_logits(model: PreTrainedModel, prompts: Sequence[Tensor]) -> Tensor:
    """The logits after each prompt, [prompts, vocab_size]."""
    rows = [model(ids.unsqueeze(0).to(model.device)).logits[0, -1] for ids in prompts]
    return torch.stack(rows).float()


def _other_half(dtype: torch.dtype) -> torch.dtype:
    """A 16-bit type in which the model's logits are rounded differently."""
    return torch.float16 if dtype == torch.bfloat16 else torch.bfloat16


def _random_ids(shape: ModelShape, length: int) -> list[int]:
    generator = torch.Generator().manual_seed(length)
    length = max(2, min(length, shape.context_length - _NUM_TOKENS))
    ids: list[int] = torch.randint(shape.vocab_size, (length,), generator=generator).tolist()
    return ids


def check_decoding(runner: ModelRunner, shape: ModelShape) -> str | None:
    """Decode a short completion through the whole engine; returns the problem, if any.

    Failures of the driver or the compiler surface here, and not in the middle of a run.
    """
    ids = tuple(_random_ids(shape, PROMPT_LENGTHS[0]))
    logprobs: list[float] = []
    with torch.inference_mode():
        runner.ensure_capacity(len(ids) + _NUM_TOKENS)
        (lease,) = runner.admit([ids])
        runner.load_batch([RowState(ids[-1], len(ids) - 1, lease.slot, 1, _NUM_TOKENS)])
        for _ in range(2):
            runner.launch_steps(LONG_LAUNCH_STEPS)
            output = runner.fetch_output()
            logprobs += output.logprobs[: output.counts[0], 0].tolist()
        runner.free_cache()
    runner.stats = DecodeStats()
    is_valid = len(logprobs) == _NUM_TOKENS and all(map(math.isfinite, logprobs))
    return None if is_valid else "it sampled invalid tokens"
