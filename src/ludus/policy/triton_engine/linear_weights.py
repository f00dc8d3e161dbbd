"""Effective weights of single modules, with LoRA adapters added, and which modules are supported.

Never changes the model. `packed_weights` copies what is read here.
"""

from __future__ import annotations

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


def has_adapter(module: Any) -> bool:
    """Whether a linear module has LoRA adapters, active or not."""
    return hasattr(active_module(module), "base_layer")


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
    linears = [base.lm_head]
    for layer in base.model.layers:
        for block in (layer.self_attn, layer.mlp):
            linears += [child for name, child in block.named_children() if name.endswith("_proj")]
    reasons = map(_unsupported_linear, linears)
    return next((reason for reason in reasons if reason is not None), None)


def _unsupported_linear(linear: Any) -> str | None:
    import torch

    module = active_module(linear)
    if hasattr(module, "base_layer"):
        if not (hasattr(module, "get_delta_weight") and hasattr(module, "lora_A")):
            return f"its adapter {type(module).__name__} is not LoRA"
        variants = [
            f"the LoRA variant {type(variant).__name__.removesuffix('LinearVariant')}"
            for variant in getattr(module, "lora_variant", {}).values()
        ]
        if any(getattr(module, "lora_bias", {}).values()):
            variants.insert(0, "LoRA with a bias")
        if any(getattr(module, "use_dora", {}).values()):
            variants.insert(0, "DoRA")
        if variants:
            return f"its adapter is {variants[0]}, which does more than add to a weight matrix"
        module = module.base_layer
    return None if type(module) is torch.nn.Linear else _unsupported_type(module)


def _unsupported_type(module: Any) -> str:
    return f"its weights are in {type(module).__name__}, which is not a plain nn.Linear"
