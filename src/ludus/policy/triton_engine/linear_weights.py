"""The weights of single modules, with what adapters add to them, and which modules have just that.

The model is only looked at. Where weights are copied to is `ludus.policy.triton_engine.packed_weights`' business.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any


def base_model(model: Any) -> Any:
    """The model under an adapter."""
    return model.get_base_model() if hasattr(model, "get_base_model") else model


def effective_weight(module: Any) -> Any:
    """Of a matrix, with its adapters added; or of a norm."""
    module = active_module(module)
    if not hasattr(module, "base_layer"):
        return module.weight
    weight = module.base_layer.weight
    if module.merged or module.disable_adapters:
        return weight
    for name in module.active_adapters:
        if name in module.lora_A:
            weight = weight.float() + module.get_delta_weight(name).float()
    return weight


def effective_bias(module: Any) -> Any:
    module = active_module(module)
    return getattr(getattr(module, "base_layer", module), "bias", None)


def active_module(module: Any) -> Any:
    """The copy that an adapter trains as a whole, where there is one."""
    copies = getattr(module, "modules_to_save", None)
    if copies is None:
        return module
    active = [copies[name] for name in module.active_adapters if name in copies]
    return active[0] if active and not module.disable_adapters else module.original_module


def unsupported_module(model: Any) -> str | None:
    """Which part of the model is no plain matrix, nor one under a plain adapter, in words."""
    import torch

    base = base_model(model)
    reasons = (
        reason for each in _iter_linears(base) if (reason := _unsupported_linear(each)) is not None
    )
    embedding = base.model.embed_tokens
    if type(active_module(embedding)) is not torch.nn.Embedding:
        return _not_plain_linear(embedding)
    return next(reasons, None)


def _iter_linears(base: Any) -> Iterator[Any]:
    yield base.lm_head
    for layer in base.model.layers:
        for part in (layer.self_attn, layer.mlp):
            yield from (each for name, each in part.named_children() if name.endswith("_proj"))


def _unsupported_linear(linear: Any) -> str | None:
    import torch

    inner = active_module(linear)
    if hasattr(inner, "base_layer"):
        if not (hasattr(inner, "get_delta_weight") and hasattr(inner, "lora_A")):
            return f"its adapter {type(inner).__name__} is no LoRA"
        if (kind := _lora_variant(inner)) is not None:
            return f"its adapter is {kind}, which does more than add to a matrix"
        inner = inner.base_layer
    return None if type(inner) is torch.nn.Linear else _not_plain_linear(inner)


def _lora_variant(adapter: Any) -> str | None:
    """What kind of LoRA it is, if no plain one."""
    variants = getattr(adapter, "lora_variant", {}).values()
    names = [type(each).__name__.removesuffix("LinearVariant") for each in variants]
    if any(getattr(adapter, "use_dora", {}).values()):
        return "DoRA"
    if any(getattr(adapter, "lora_bias", {}).values()):
        return "LoRA with a bias"
    return f"of the kind {names[0]}" if names else None


def _not_plain_linear(module: Any) -> str:
    return f"its weights are in {type(module).__name__}, which is no plain matrix"
