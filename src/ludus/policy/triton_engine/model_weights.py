"""A copy of a model's weights in the layout of the kernels, and which models can have one.

q, k and v are one matrix, and so are gate and up. The weight of each RMSNorm is folded into the
matrix after it, so that at runtime a norm is one factor per row. Updates are written in place,
because captured CUDA graphs hold the addresses.

A LoRA adapter is added to its base here, in the copy. The model is not touched: merging and
unmerging would leave it with slightly different weights.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import Module
from transformers import PreTrainedModel

SUPPORTED_ARCHITECTURES = (
    "LlamaForCausalLM",
    "MistralForCausalLM",
    "Qwen2ForCausalLM",
    "Qwen3ForCausalLM",
)
_STATIC_ROPE_TYPES = ("default", "linear", "llama3", "yarn")
"""Rotary embeddings that depend on the position alone, not on the length of the sequence."""
_MIN_HEAD_DIM = 16
"""The smallest inner dimension that `tl.dot` accepts."""


@dataclass(frozen=True, slots=True)
class ModelShape:
    """Sizes and constants that the kernels need."""

    num_layers: int
    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    eps: float
    softmax_scale: float
    qk_norm: bool
    """Whether each query and key head goes through an RMSNorm."""
    context_length: int

    @property
    def queries_per_kv_head(self) -> int:
        return self.num_heads // self.num_kv_heads


def read_model_shape(model: PreTrainedModel) -> ModelShape | str:
    """The model's shape, or the reason why it cannot be decoded by this engine."""
    base = base_model(model)
    architecture = type(base).__name__
    if architecture not in SUPPORTED_ARCHITECTURES:
        return f"{architecture} is none of {', '.join(SUPPORTED_ARCHITECTURES)}"
    if (feature := _unsupported_feature(base)) is not None:
        return f"this {architecture} {feature}"
    if (reason := _unsupported_module(base)) is not None:
        return reason
    config, attention = base.config, base.model.layers[0].self_attn
    return ModelShape(
        num_layers=config.num_hidden_layers,
        hidden_size=config.hidden_size,
        intermediate_size=config.intermediate_size,
        num_heads=config.num_attention_heads,
        num_kv_heads=config.num_key_value_heads,
        head_dim=attention.head_dim,
        vocab_size=base.get_input_embeddings().weight.shape[0],
        eps=config.rms_norm_eps,
        softmax_scale=attention.scaling,
        qk_norm=hasattr(attention, "q_norm"),
        context_length=config.max_position_embeddings,
    )


def _unsupported_feature(base: PreTrainedModel) -> str | None:
    """What sets the model apart from its family, if anything does."""
    config, layers = base.config, base.model.layers
    head_dim = layers[0].self_attn.head_dim
    rope_type = getattr(base.model.rotary_emb, "rope_type", "default")
    vocab_in = getattr(_active_module(base.model.embed_tokens), "num_embeddings", None)
    vocab_out = getattr(_active_module(base.lm_head), "out_features", None)
    layer_types = getattr(config, "layer_types", None)
    if layer_types is None:
        window = getattr(config, "sliding_window", None)
        has_window = window is not None and window < config.max_position_embeddings
    else:
        has_window = any(layer_type != "full_attention" for layer_type in layer_types)
    activations = {type(layer.mlp.act_fn).__name__ for layer in layers}
    mlps = [layer.mlp for layer in layers]
    mlp_linears = [linear for mlp in mlps for linear in (mlp.gate_proj, mlp.up_proj, mlp.down_proj)]
    mlp_biases = [_effective_bias(linear) for linear in (base.lm_head, *mlp_linears)]
    attentions = [layer.self_attn for layer in layers]
    qkv_biases = [
        {_effective_bias(linear) is None for linear in (each.q_proj, each.k_proj, each.v_proj)}
        for each in attentions
    ]
    features = {
        "has sliding-window attention": has_window,
        f"has the activation {config.hidden_act}": config.hidden_act not in ("silu", "swish"),
        "has other activations in some layers": activations - {"SiLU", "SiLUActivation"},
        f"has rotary embeddings of the type {rope_type}": rope_type not in _STATIC_ROPE_TYPES,
        f"has a head_dim of {head_dim}": head_dim < _MIN_HEAD_DIM or head_dim & (head_dim - 1),
        "has a bias in its MLP or its lm_head": any(bias is not None for bias in mlp_biases),
        "has a bias in some of its attention projections": any(len(x) > 1 for x in qkv_biases),
        f"embeds {vocab_in} tokens and predicts {vocab_out}": vocab_in != vocab_out
        and None not in (vocab_in, vocab_out),
        "is spread over several devices": len({each.device for each in base.parameters()}) > 1,
    }
    return next((feature for feature, present in features.items() if present), None)


def _unsupported_module(base: PreTrainedModel) -> str | None:
    """Why some module is neither plain nor a plain module with LoRA, if there is such a one."""
    embedding, modules = _active_module(base.model.embed_tokens), [_active_module(base.lm_head)]
    if type(embedding) is not torch.nn.Embedding:
        return f"its embedding is a {type(embedding).__name__}"
    for layer in base.model.layers:
        for block in (layer.self_attn, layer.mlp):
            children = block.named_children()
            modules += [_active_module(each) for name, each in children if name.endswith("_proj")]
    for module in modules:
        if hasattr(module, "base_layer"):
            variants = ("lora_variant", "lora_bias", "use_dora")
            is_lora = hasattr(module, "get_delta_weight") and hasattr(module, "lora_A")
            if not is_lora or any(any(getattr(module, name, {}).values()) for name in variants):
                return "its adapter is not LoRA, or a variant that does more than add to a matrix"
            module = module.base_layer
        if type(module) is not torch.nn.Linear:
            return f"its weights are in {type(module).__name__}, which is not a plain nn.Linear"
    return None


@dataclass(frozen=True, slots=True)
class PackedLayer:
    """Weights of one layer; matrices are [out_features, in_features], as in `nn.Linear`."""

    qkv: Tensor
    qkv_bias: Tensor | None
    q_norm: Tensor | None
    k_norm: Tensor | None
    o_proj: Tensor
    o_bias: Tensor | None
    gate_up: Tensor
    down_proj: Tensor


class PackedWeights:
    """All weights that a forward pass reads."""

    def __init__(self, model: PreTrainedModel, shape: ModelShape, *, dtype: torch.dtype) -> None:
        self.dtype = dtype
        self._model = model
        base = base_model(model)
        self.device = base.model.embed_tokens.weight.device
        self.layers = [self._allocate_layer(layer, shape) for layer in base.model.layers]
        self.embedding = self._empty(shape.vocab_size, shape.hidden_size)
        self.lm_head = self._empty(shape.vocab_size, shape.hidden_size)
        self.sync()

    def sync(self) -> None:
        """Copy the model's current weights."""
        base = base_model(self._model)
        with torch.inference_mode():
            for layer, source in zip(self.layers, base.model.layers, strict=True):
                attention, mlp = source.self_attn, source.mlp
                qkv = [attention.q_proj, attention.k_proj, attention.v_proj]
                gate_up = [mlp.gate_proj, mlp.up_proj]
                _pack(layer.qkv, qkv, norm=source.input_layernorm)
                _pack(layer.o_proj, [attention.o_proj])
                _pack(layer.gate_up, gate_up, norm=source.post_attention_layernorm)
                _pack(layer.down_proj, [mlp.down_proj])
                if layer.qkv_bias is not None:
                    layer.qkv_bias.copy_(torch.cat([_effective_bias(linear) for linear in qkv]))
                if layer.o_bias is not None:
                    layer.o_bias.copy_(_effective_bias(attention.o_proj))
                if layer.q_norm is not None and layer.k_norm is not None:
                    layer.q_norm.copy_(_effective_weight(attention.q_norm))
                    layer.k_norm.copy_(_effective_weight(attention.k_norm))
            self.embedding.copy_(_effective_weight(base.model.embed_tokens))
            _pack(self.lm_head, [base.lm_head], norm=base.model.norm)

    def _empty(self, *shape: int, dtype: torch.dtype | None = None) -> Tensor:
        return torch.empty(shape, dtype=dtype or self.dtype, device=self.device)

    def _allocate_layer(self, source: Module, shape: ModelShape) -> PackedLayer:
        attention, hidden = source.self_attn, shape.hidden_size
        q_size = shape.num_heads * shape.head_dim
        qkv_size = q_size + 2 * shape.num_kv_heads * shape.head_dim

        def vector(exists: bool, length: int) -> Tensor | None:
            return self._empty(length, dtype=torch.float32) if exists else None

        return PackedLayer(
            qkv=self._empty(qkv_size, hidden),
            qkv_bias=vector(_effective_bias(attention.q_proj) is not None, qkv_size),
            q_norm=vector(shape.qk_norm, shape.head_dim),
            k_norm=vector(shape.qk_norm, shape.head_dim),
            o_proj=self._empty(hidden, q_size),
            o_bias=vector(_effective_bias(attention.o_proj) is not None, hidden),
            gate_up=self._empty(2 * shape.intermediate_size, hidden),
            down_proj=self._empty(hidden, shape.intermediate_size),
        )


def _pack(target: Tensor, linears: Sequence[Module], *, norm: Module | None = None) -> None:
    """Copy the weights one below the other, each column multiplied by the norm's weight."""
    scale = None if norm is None else _effective_weight(norm).float()
    start = 0
    for linear in linears:
        weight = _effective_weight(linear)
        end = start + len(weight)
        if scale is not None:
            if not hasattr(_active_module(linear), "base_layer"):
                # A trainer that computes in this dtype rounds the weight too. Small changes by an
                # adapter, which it adds to the output, would be lost.
                weight = weight.to(target.dtype)
            weight = weight.float() * scale
        target[start:end].copy_(weight)
        start = end


def base_model(model: PreTrainedModel) -> PreTrainedModel:
    """The transformers model under a PEFT adapter."""
    return model.get_base_model() if hasattr(model, "get_base_model") else model


def _effective_weight(module: Module) -> Tensor:
    """The weight of a linear module with its active LoRA adapters added, or of a norm."""
    module = _active_module(module)
    if not hasattr(module, "base_layer"):
        return module.weight
    weight = module.base_layer.weight
    if module.merged or module.disable_adapters:
        return weight
    for name in module.active_adapters:
        if name in module.lora_A:
            weight = weight.float() + module.get_delta_weight(name).float()
    return weight


def _effective_bias(module: Module) -> Tensor | None:
    module = _active_module(module)
    return getattr(getattr(module, "base_layer", module), "bias", None)


def _active_module(module: Module) -> Module:
    """The trained copy of a module that PEFT lists in `modules_to_save`, or the module itself."""
    copies = getattr(module, "modules_to_save", None)
    if copies is None:
        return module
    active = [copies[name] for name in module.active_adapters if name in copies]
    return active[0] if active and not module.disable_adapters else module.original_module
