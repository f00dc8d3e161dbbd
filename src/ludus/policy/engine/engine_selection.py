"""Which engine answers for a policy, and a line that says so: with a reason, if it is the slow one.

How engines work is not its business.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ludus.errors import ConfigError
from ludus.policy.device import choose_dtype
from ludus.policy.engine.batcher import BATCH_WAIT_S, Engine
from ludus.policy.engine.hf_decoder import HFDecoder

if TYPE_CHECKING:
    from ludus.policy.load import Policy

HF_MAX_BATCH = 64
TRITON_MAX_BATCH = 256


@dataclass(frozen=True, slots=True)
class EngineChoice:
    """An engine, and how it wants to be asked."""

    engine: Engine
    description: str
    max_batch: int
    batch_wait_s: float = BATCH_WAIT_S


def choose_engine(
    policy: Policy, *, fast: bool | None, dtype: str | None, max_batch: int | None
) -> EngineChoice:
    """The fast one where it can be had (`fast=None`), where it must (True) or not at all."""
    pad = policy.tokenizer.pad_token_id or 0
    if policy.vision is not None:
        return _hf_choice(
            _build_vlm_decoder(policy, pad), "the model sees pictures", fast, max_batch
        )
    reason = _reason_against_triton(policy, fast, dtype)
    if reason is None:
        made = _try_triton_engine(policy.model, max_batch, strict=fast is True)
        if not isinstance(made, str):
            # Who comes later joins, so nobody has to be waited for.
            return EngineChoice(
                made,
                _describe_triton_engine(policy.model),
                max_batch or TRITON_MAX_BATCH,
                batch_wait_s=0.0,
            )
        reason = made
    return _hf_choice(HFDecoder(policy.model, pad_id=pad), reason, fast, max_batch)


def _hf_choice(
    engine: Engine, reason: str, fast: bool | None, max_batch: int | None
) -> EngineChoice:
    if fast:
        raise ConfigError(f"Fast decoding was asked for, and cannot be: {reason}. Leave it off.")
    return EngineChoice(engine, f"plain generate: {reason}", max_batch or HF_MAX_BATCH)


def _reason_against_triton(policy: Policy, fast: bool | None, dtype: str | None) -> str | None:
    """Why the fast one is not even tried."""
    if fast is not None:
        return None if fast else "fast decoding is switched off"
    if policy.model.device.type != "cuda":
        return "no GPU"
    asked = choose_dtype(dtype, "cuda") if dtype else "bfloat16"
    return None if asked == "bfloat16" else f"{asked} was asked for, and fast is bfloat16"


def _try_triton_engine(model: Any, max_batch: int | None, *, strict: bool) -> Any:
    from ludus.policy.triton_engine.triton_engine import build_triton_engine

    try:
        # Whoever says how many there are at the most has as many in mind.
        return build_triton_engine(
            model, max_batch=max_batch or TRITON_MAX_BATCH, expected=max_batch
        )
    except Exception as error:
        # A compiler or a driver that does not take the kernels must not cost the run.
        if strict:
            raise
        words = " ".join(str(error).split())[:200]
        return f"the fast way failed with {type(error).__name__}: {words}"


def _describe_triton_engine(model: Any) -> str:
    import torch

    if model.device.type != "cuda":
        return "fast decoding, in plain torch on the CPU"
    return (
        f"fast decoding: own kernels and CUDA graphs on {torch.cuda.get_device_name(model.device)}"
    )


def _build_vlm_decoder(policy: Policy, pad_id: int) -> Engine:
    from ludus.policy.vision.vlm_decoder import VLMDecoder

    assert policy.vision is not None
    return VLMDecoder(policy.model, pad_id=pad_id, vision=policy.vision)
