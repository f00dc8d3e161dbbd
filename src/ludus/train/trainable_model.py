"""Loading a model for training: float32 weights that follow every update, however small.

Models are published and computed in bfloat16, where a weight near 0.1 is a multiple of 0.0005. An
update of 0.00001 to such a weight is rounded away in every forward pass and in the saved model, as
long as the sum of updates is below half of that spacing: the gradients see no change until many
weights jump at once.

The weights are therefore dithered: each one starts at a random place among the float32 numbers that
round to its published value. Rounded, the model is the published one, bit for bit. An update of a
fiftieth of the spacing then moves one weight in fifty by the spacing: on average, the rounded
weights follow.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ludus.policy.load import load_model
from ludus.policy.model_ref import ModelKind, ModelRef, resolve_base_model

if TYPE_CHECKING:
    from torch import nn
    from transformers import PreTrainedModel

_DROPPED_BITS = {"bfloat16": 16, "float16": 13}
"""Bits of a float32 number that rounding to a dtype drops."""
_SMALLEST_NORMAL_FLOAT16 = 2.0**-14
"""Below, float16 numbers have fewer bits."""
_SEED = 0
"""Every process of a run, and a run that is resumed, must start with the same weights."""


def load_trainable_model(ref: ModelRef) -> PreTrainedModel:
    """Load a model on the CPU in float32, with dithered weights."""
    model = load_model(ref.name, device="cpu", dtype="float32", allow_vision=True)
    dither_weights(model, published_dtype(ref))
    return model


def published_dtype(ref: ModelRef) -> str:
    """The dtype in which a model is published; float32 if its config has none."""
    from transformers import AutoConfig

    if ref.kind is ModelKind.ADAPTER:
        return published_dtype(resolve_base_model(ref))
    local = ref.kind is ModelKind.FOLDER or ref.cache_only
    config = AutoConfig.from_pretrained(ref.path, local_files_only=local)
    dtype = str(getattr(config, "dtype", None) or "float32").removeprefix("torch.")
    return dtype if dtype in _DROPPED_BITS else "float32"


def dither_weights(model: nn.Module, dtype: str) -> None:
    """Add noise to each float32 weight that leaves its value rounded to `dtype` unchanged."""
    import torch

    bits = _DROPPED_BITS.get(dtype)
    if bits is None:
        return
    half = 1 << (bits - 1)
    smallest = _SMALLEST_NORMAL_FLOAT16 if dtype == "float16" else 0.0
    generator = torch.Generator().manual_seed(_SEED)
    with torch.no_grad():
        for weight in model.parameters():
            if weight.dtype != torch.float32:
                continue
            noise = torch.randint(
                1 - half, half, weight.shape, generator=generator, dtype=torch.int32
            )
            rounded = weight.to(getattr(torch, dtype)).float()
            # Float32 numbers of a sign are ordered like the integers of the same bits.
            dithered = (rounded.view(torch.int32) + noise).view(torch.float32)
            on_grid = (rounded == weight) & (rounded.abs() > smallest)
            weight.copy_(torch.where(on_grid, dithered, weight))
