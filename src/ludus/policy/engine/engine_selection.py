"""Choose the engine that decodes for a policy: the Triton engine where it is supported."""

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
    """An engine, a line that describes it, and the batcher's settings for it."""

    engine: Engine
    description: str
    max_batch: int
    batch_wait_s: float = BATCH_WAIT_S


def choose_engine(
    policy: Policy, *, fast: bool | None, dtype: str | None, max_batch: int | None
) -> EngineChoice:
    """Build the engine for a policy.

    Args:
        fast: True requires the Triton engine, False excludes it. None takes it on a GPU, for
            models that it supports.
        dtype: The dtype that the user asked for: the Triton engine decodes in bfloat16.
        max_batch: Most requests at once. Default: depends on the engine.
    """
    reason = _reason_against_triton(policy, fast, dtype)
    if reason is None:
        engine = _try_triton_engine(policy.model, max_batch, strict=fast is True)
        if not isinstance(engine, str):
            description = "Triton engine, with reference ops on the CPU"
            if policy.model.device.type == "cuda":
                import torch

                gpu = torch.cuda.get_device_name(policy.model.device)
                description = f"Triton engine with CUDA graphs on {gpu}"
            # Late requests join a running batch, so there is no need to wait for them.
            return EngineChoice(
                engine, description, max_batch or TRITON_MAX_BATCH, batch_wait_s=0.0
            )
        reason = engine
    if fast:
        raise ConfigError(f"`fast` decoding is not supported here: {reason}. Leave it off.")
    pad_id = policy.tokenizer.pad_token_id or 0
    if policy.vision is None:
        decoder = HFDecoder(policy.model, pad_id=pad_id)
    else:
        from ludus.policy.vision.vlm_decoder import VLMDecoder

        decoder = VLMDecoder(policy.model, pad_id=pad_id, vision=policy.vision)
    return EngineChoice(decoder, f"HF decoder: {reason}", max_batch or HF_MAX_BATCH)


def _reason_against_triton(policy: Policy, fast: bool | None, dtype: str | None) -> str | None:
    """Say why the Triton engine is not even tried, or return None."""
    if policy.vision is not None:
        return "the model takes images"
    if fast is not None:
        return None if fast else "the Triton engine is switched off"
    if policy.model.device.type != "cuda":
        return "no GPU"
    requested = choose_dtype(dtype, "cuda") if dtype else "bfloat16"
    if requested != "bfloat16":
        return f"{requested} was asked for, and the Triton engine decodes in bfloat16"
    return None


def _try_triton_engine(model: Any, max_batch: int | None, *, strict: bool) -> Any:
    """Return the engine, or the reason why the model cannot have one."""
    from ludus.policy.triton_engine.triton_engine import build_triton_engine

    try:
        # A user who limits the batch expects batches of that size.
        return build_triton_engine(
            model, max_batch=max_batch or TRITON_MAX_BATCH, expected=max_batch
        )
    except Exception as error:
        # A compiler or a driver that cannot build the kernels must not end the run.
        if strict:
            raise
        message = " ".join(str(error).split())[:200]
        return f"the Triton engine failed with {type(error).__name__}: {message}"
