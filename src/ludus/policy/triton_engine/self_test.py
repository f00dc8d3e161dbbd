"""Whether this way of decoding gives what the model itself gives, and the machine bears it.

Asked once, at the start, where it is not too late to decode another way.
"""

from __future__ import annotations

import math
from typing import Any

from ludus.policy.engine.decode_stats import DecodeStats
from ludus.policy.triton_engine.batch_state import RowState
from ludus.policy.triton_engine.kv_cache import KVCache
from ludus.policy.triton_engine.llama_forward import LlamaForward
from ludus.policy.triton_engine.model_runner import LONG_LAUNCH_STEPS, ModelRunner
from ludus.policy.triton_engine.model_shape import ModelShape

PROMPT_LENGTHS = (200, 9)
"""Several blocks of keys, and less than one."""
FLOAT32_TOLERANCE, BFLOAT16_TOLERANCE = 1e-3, 0.1
"""How far logits may lie off, as a share of how much they vary: in single and in half precision."""


def check_logits(model: Any, network: LlamaForward, cache: KVCache) -> str | None:
    """How far this way lies off the model's own, if it is too far."""
    import torch

    shape = network.shape
    rows = [torch.tensor(_random_ids(shape, length)) for length in PROMPT_LENGTHS]
    with torch.inference_mode():
        cache.resize(len(rows), max(map(len, rows)))
        theirs = torch.stack([_reference_logits(model, row) for row in rows]).float()
        _prefill(network, cache, rows)
        ours = [_decode(network, cache, rows, splits) for splits in (1, 2)]
        cache.free()
    far = [(each - theirs).square().mean().sqrt() / theirs.std().clamp(min=1e-6) for each in ours]
    exact = network.weights.dtype == model.dtype == torch.float32
    bound = FLOAT32_TOLERANCE if exact else BFLOAT16_TOLERANCE
    # Put this way round, what is not a number is a mismatch too.
    odd = [float(each) for each in far if not each <= bound]
    return f"its logits came out {odd[0]:.1%} off the model's own" if odd else None


def _random_ids(shape: ModelShape, length: int) -> list[int]:
    import torch

    made = torch.Generator().manual_seed(length)
    # As long as the model can bear, with room for a few words more.
    length = max(2, min(length, shape.context_length - 2 * LONG_LAUNCH_STEPS))
    ids: list[int] = torch.randint(shape.vocab_size, (length,), generator=made).tolist()
    return ids


def _reference_logits(model: Any, row: Any) -> Any:
    training = model.training
    model.eval()
    try:
        return model(row.unsqueeze(0).to(model.device)).logits[0, -1]
    finally:
        model.train(training)


def _prefill(network: LlamaForward, cache: KVCache, rows: list[Any]) -> None:
    import torch

    device = network.weights.device
    slots = torch.cat([torch.full((len(row) - 1,), at) for at, row in enumerate(rows)])
    positions = torch.cat([torch.arange(len(row) - 1) for row in rows])
    tokens = torch.cat([row[:-1] for row in rows])
    network.prefill(tokens.to(device), slots.to(device), positions.to(device), cache)


def _decode(network: LlamaForward, cache: KVCache, rows: list[Any], splits: int) -> Any:
    import torch

    device = network.weights.device
    last = torch.stack([row[-1] for row in rows]).to(device)
    ends = torch.tensor([len(row) - 1 for row in rows], device=device)
    return network.decode(last, torch.arange(len(rows), device=device), ends, cache, splits=splits)


def check_decoding(machine: ModelRunner, blueprint: ModelShape) -> str | None:
    """What a reply of a few words comes to, if not to words: read, recorded, replayed and drawn.

    What a driver or a compiler does not take is raised here, and not in the midst of a run.
    """
    import torch

    ids = tuple(_random_ids(blueprint, PROMPT_LENGTHS[0]))
    with torch.inference_mode():
        machine.ensure_capacity(1, len(ids) + 2 * LONG_LAUNCH_STEPS)
        (lease,) = machine.admit([ids])
        line = RowState(
            ids[-1], len(ids) - 1, lease.slot, 1, 2 * LONG_LAUNCH_STEPS, 1.0, 1.0, 0, ()
        )
        first, again = _sample_logprobs(machine, line), _sample_logprobs(machine, line)
        machine.free_cache()
    machine.stats = DecodeStats()
    if len(first) < 2 * LONG_LAUNCH_STEPS or not all(map(math.isfinite, first)):
        return "what it draws is no token"
    same = [
        math.isclose(*pair, abs_tol=FLOAT32_TOLERANCE) for pair in zip(first, again, strict=False)
    ]
    return None if all(same) and len(same) == len(first) else "it does not draw the same again"


def _sample_logprobs(machine: ModelRunner, line: RowState) -> list[float]:
    """What its words were worth. At first they are worked out and recorded, and then replayed."""
    machine.load_batch([line])
    logprobs: list[float] = []
    for _ in range(2):
        machine.launch_steps(LONG_LAUNCH_STEPS)
        look = machine.fetch_output()
        logprobs += look.logprobs[0][: look.counts[0]]
    return logprobs
