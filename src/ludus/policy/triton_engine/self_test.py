"""Self-test of the engine: whether it reproduces the model's logits, and decodes repeatably.

Run once when an engine is built, while another way of decoding can still be chosen.
"""

from __future__ import annotations

import math
from typing import Any

from ludus.policy.engine.decode_stats import DecodeStats
from ludus.policy.triton_engine.batch_state import RowState
from ludus.policy.triton_engine.cuda_graphs import LONG_LAUNCH_STEPS
from ludus.policy.triton_engine.kv_cache import KVCache
from ludus.policy.triton_engine.llama_forward import LlamaForward
from ludus.policy.triton_engine.model_runner import ModelRunner
from ludus.policy.triton_engine.model_shape import ModelShape

PROMPT_LENGTHS = (200, 9)
"""Several blocks of cached tokens, and less than one block."""
FLOAT32_TOLERANCE, BFLOAT16_TOLERANCE = 1e-3, 0.1
"""Largest root-mean-square error of the logits, relative to their standard deviation."""
_NUM_TOKENS = 2 * LONG_LAUNCH_STEPS
"""Tokens that are decoded: one launch that is captured, and one that is replayed."""


def check_logits(model: Any, forward: LlamaForward, cache: KVCache) -> str | None:
    """How far the engine's logits are off the model's own, if it is too far."""
    import torch

    device = forward.weights.device
    prompts = [torch.tensor(_random_ids(forward.shape, length)) for length in PROMPT_LENGTHS]
    # One slot per prompt. All but the last tokens are prefilled, the last ones decoded.
    tokens = torch.cat([ids[:-1] for ids in prompts]).to(device)
    slots = torch.cat([torch.full((len(ids) - 1,), slot) for slot, ids in enumerate(prompts)])
    positions = torch.cat([torch.arange(len(ids) - 1) for ids in prompts])
    last_tokens = torch.stack([ids[-1] for ids in prompts]).to(device)
    last_slots = torch.arange(len(prompts), device=device)
    last_positions = torch.tensor([len(ids) - 1 for ids in prompts], device=device)
    with torch.inference_mode():
        cache.resize(len(prompts), max(map(len, prompts)))
        expected = torch.stack([_model_logits(model, ids) for ids in prompts]).float()
        forward.prefill(tokens, slots.to(device), positions.to(device), cache)
        logits = [
            forward.decode(last_tokens, last_slots, last_positions, cache, splits=splits)
            for splits in (1, 2)
        ]
        cache.free()
    scale = expected.std().clamp(min=1e-6)
    errors = [float((each - expected).square().mean().sqrt() / scale) for each in logits]
    exact = forward.weights.dtype == model.dtype == torch.float32
    tolerance = FLOAT32_TOLERANCE if exact else BFLOAT16_TOLERANCE
    # "not <=" rather than ">": NaN fails too.
    too_large = [error for error in errors if not error <= tolerance]
    return f"its logits came out {too_large[0]:.1%} off the model's own" if too_large else None


def _random_ids(shape: ModelShape, length: int) -> list[int]:
    import torch

    generator = torch.Generator().manual_seed(length)
    length = max(2, min(length, shape.context_length - _NUM_TOKENS))
    ids: list[int] = torch.randint(shape.vocab_size, (length,), generator=generator).tolist()
    return ids


def _model_logits(model: Any, ids: Any) -> Any:
    training = model.training
    model.eval()
    try:
        return model(ids.unsqueeze(0).to(model.device)).logits[0, -1]
    finally:
        model.train(training)


def check_decoding(runner: ModelRunner, shape: ModelShape) -> str | None:
    """Decode a short completion twice through the whole path; returns what is wrong, if anything.

    What a driver or a compiler does not support is raised here, and not in the middle of a run.
    """
    import torch

    ids = tuple(_random_ids(shape, PROMPT_LENGTHS[0]))
    with torch.inference_mode():
        runner.ensure_capacity(1, len(ids) + _NUM_TOKENS)
        (lease,) = runner.admit([ids])
        row = RowState(
            token=ids[-1],
            position=len(ids) - 1,
            slot=lease.slot,
            seed=1,
            tokens_left=_NUM_TOKENS,
            temperature=1.0,
            top_p=1.0,
            top_k=0,
            stops=(),
        )
        first, second = _sample_logprobs(runner, row), _sample_logprobs(runner, row)
        runner.free_cache()
    runner.stats = DecodeStats()
    if len(first) < _NUM_TOKENS or not all(map(math.isfinite, first)):
        return "it sampled invalid tokens"
    repeated = len(first) == len(second) and all(
        math.isclose(a, b, abs_tol=FLOAT32_TOLERANCE) for a, b in zip(first, second, strict=True)
    )
    return None if repeated else "it did not sample the same tokens twice"


def _sample_logprobs(runner: ModelRunner, row: RowState) -> list[float]:
    """Log-probabilities of a completion of two launches."""
    runner.load_batch([row])
    logprobs: list[float] = []
    for _ in range(2):
        runner.launch_steps(LONG_LAUNCH_STEPS)
        output = runner.fetch_output()
        logprobs += output.logprobs[0][: output.counts[0]]
    return logprobs
