"""Effective weights of single modules, with LoRA adapters added, and which modules are supported.

Never changes the model. `packed_weights` copies what is read here.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any


def base_model(model: Any) -> Any:
    """The transformers model under a PEFT adapter."""
    return model.get_base_model() if hasattr(model, "get_base_model") else model


def effective_weight(module: Any) -> Any:
    """The weight of a linear module with its active LoRA adapters added, or that of a norm."""
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
    """The trained copy of a module that PEFT lists in `modules_to_save`, or the module itself."""
    copies = getattr(module, "modules_to_save", None)
    if copies is None:
        return module
    active = [copies[name] for name in module.active_adapters if name in copies]
    return active[0] if active and not module.disable_adapters else module.original_module


def unsupported_module(model: Any) -> str | None:
    """Why some module is neither plain nor a plain module with LoRA, if there is such a one."""
    import torch

    base = base_model(model)
    embedding = base.model.embed_tokens
    if type(active_module(embedding)) is not torch.nn.Embedding:
        return _unsupported_type(embedding)
    reasons = map(_unsupported_linear, _iter_linears(base))
    return next((reason for reason in reasons if reason is not None), None)


def _iter_linears(base: Any) -> Iterator[Any]:
    yield base.lm_head
    for layer in base.model.layers:
        for block in (layer.self_attn, layer.mlp):
            yield from (module for name, module in block.named_children() if name.endswith("_proj"))


def _unsupported_linear(linear: Any) -> str | None:
    import torch

    module = active_module(linear)
    if hasattr(module, "base_layer"):
        if not (hasattr(module, "get_delta_weight") and hasattr(module, "lora_A")):
            return f"its adapter {type(module).__name__} is not LoRA"
        if (variant := _lora_variant(module)) is not None:
            return f"its adapter is {variant}, which does more than add to a weight matrix"
        module = module.base_layer
    return None if type(module) is torch.nn.Linear else _unsupported_type(module)


def _lora_variant(adapter: Any) -> str | None:
    """The variant of LoRA, if it is not the plain one."""
    if any(getattr(adapter, "use_dora", {}).values()):
        return "DoRA"
    if any(getattr(adapter, "lora_bias", {}).values()):
        return "LoRA with a bias"
    variants = getattr(adapter, "lora_variant", {}).values()
    names = [type(variant).__name__.removesuffix("LinearVariant") for variant in variants]
    return f"the LoRA variant {names[0]}" if names else None


def _unsupported_type(module: Any) -> str:
    return f"its weights are in {type(module).__name__}, which is not a plain nn.Linear"
