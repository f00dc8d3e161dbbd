"""A copy of a model's weights in the layout of the kernels, and which models can have one.

q, k and v are one matrix, and so are gate and up. The weight of each RMSNorm is folded into the
matrix after it, so that at runtime a norm is one factor per row. Captured CUDA graphs hold the
addresses, so updates are written in place. A LoRA adapter is added to its base in the copy: merging
and unmerging would leave the model with slightly different weights.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import torch
from torch import Tensor
from torch.nn import Module
from transformers import PreTrainedConfig, PreTrainedModel

SUPPORTED_ARCHITECTURES = (
    "Gemma3ForCausalLM",
    "LlamaForCausalLM",
    "MistralForCausalLM",
    "Qwen2ForCausalLM",
    "Qwen3ForCausalLM",
)
_STATIC_ROPE_TYPES = ("default", "linear", "llama3", "yarn")
"""Rotary embeddings that depend on the position alone, not on the length of the sequence."""
_SILU, _GELU = {"SiLU", "SiLUActivation"}, {"GELUTanh"}
_ATTENTION_TYPES = {"full_attention", "sliding_attention"}
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
    windows: tuple[int, ...] = ()
    """The sliding window of each layer, in tokens; 0: none. Empty: no layer has one."""
    rope_types: tuple[str, ...] = ()
    """The type of each layer, if layers differ in their rotary embeddings."""
    gelu: bool = False
    """Whether the activation is GELU instead of SiLU."""
    embedding_scale: float = 1.0

    @property
    def queries_per_kv_head(self) -> int:
        return self.num_heads // self.num_kv_heads


def read_model_shape(model: PreTrainedModel) -> ModelShape | str:
    """Read the shape of a model, or the reason why this engine cannot decode with it."""
    base = base_model(model)
    architecture = type(base).__name__
    if architecture not in SUPPORTED_ARCHITECTURES:
        return f"{architecture} is none of {', '.join(SUPPORTED_ARCHITECTURES)}"
    if (feature := _unsupported_feature(base)) is not None:
        return f"this {architecture} {feature}"
    embedding, modules = base.model.embed_tokens, [base.lm_head]
    if type(embedding) is not torch.nn.Embedding and not hasattr(embedding, "embed_scale"):
        return f"its embedding is a {type(embedding).__name__}"
    for block in (each for layer in base.model.layers for each in (layer.self_attn, layer.mlp)):
        modules += [child for name, child in block.named_children() if name.endswith("_proj")]
    for module in modules:
        if hasattr(module, "base_layer"):
            variants = ("lora_variant", "lora_bias", "use_dora")
            is_lora = hasattr(module, "get_delta_weight") and hasattr(module, "lora_A")
            if not is_lora or any(any(getattr(module, name, {}).values()) for name in variants):
                return "its adapter is not LoRA, or a variant that does more than add to a matrix"
            module = module.base_layer
        if type(module) is not torch.nn.Linear:
            return f"its weights are in {type(module).__name__}, which is not a plain nn.Linear"
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
        windows=_sliding_windows(config),
        rope_types=tuple(config.layer_types) if isinstance(_rope_type(base), dict) else (),
        gelu=type(base.model.layers[0].mlp.act_fn).__name__ in _GELU,
        embedding_scale=float(getattr(embedding, "embed_scale", 1.0)),
    )


def _sliding_windows(config: PreTrainedConfig) -> tuple[int, ...]:
    types = getattr(config, "layer_types", None) or ["sliding_attention"] * config.num_hidden_layers
    window = getattr(config, "sliding_window", None) or 0
    windows = tuple(window if each == "sliding_attention" else 0 for each in types)
    return windows if 0 < window < config.max_position_embeddings and any(windows) else ()


def _rope_type(base: PreTrainedModel) -> str | dict[str, str]:
    return getattr(base.model.rotary_emb, "rope_type", "default")


def _unsupported_feature(base: PreTrainedModel) -> str | None:
    """What sets the model apart from its family, if anything does."""
    config, layers = base.config, base.model.layers
    head_dim = layers[0].self_attn.head_dim
    rope_type = _rope_type(base)
    rope_types = {*rope_type.values()} if isinstance(rope_type, dict) else {rope_type}
    vocab_in = getattr(base.model.embed_tokens, "num_embeddings", None)
    vocab_out = getattr(base.lm_head, "out_features", None)
    layer_types = {*(getattr(config, "layer_types", None) or ())} - _ATTENTION_TYPES
    caps = [getattr(config, f"{name}_logit_softcapping", None) for name in ("attn", "final")]
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
        f"has layers of the type {', '.join(layer_types)}": layer_types,
        "caps its logits": any(caps),
        "attends in both directions": getattr(config, "use_bidirectional_attention", False),
        f"has the activations {', '.join(sorted(activations))}": not (
            activations <= _SILU or activations <= _GELU
        ),
        f"has rotary embeddings of the type {', '.join(rope_types)}": rope_types.difference(
            _STATIC_ROPE_TYPES
        ),
        f"has a head_dim of {head_dim}": head_dim < _MIN_HEAD_DIM or head_dim & (head_dim - 1),
        "has a bias in its MLP or its lm_head": any(bias is not None for bias in mlp_biases),
        "has a bias in some of its attention projections": any(len(x) > 1 for x in qkv_biases),
        f"embeds {vocab_in} tokens and predicts {vocab_out}": vocab_in != vocab_out
        and None not in (vocab_in, vocab_out),
        "trains modules beside its adapter": any(
            hasattr(module, "modules_to_save") for module in base.modules()
        ),
        "is spread over several devices": len({each.device for each in base.parameters()}) > 1,
    }
    return next((feature for feature, present in features.items() if present), None)


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
    post_attention_norm: Tensor | None = None
    """Norm of the attention's output, before it is added to the residual."""
    post_mlp_norm: Tensor | None = None


class PackedWeights:
    """All weights that a forward pass reads."""

    def __init__(self, model: PreTrainedModel, *, dtype: torch.dtype) -> None:
        self.dtype = dtype
        self._model = model
        base = base_model(model)
        self.device = base.model.embed_tokens.weight.device
        with torch.no_grad():
            self.layers = [self._pack_layer(layer) for layer in base.model.layers]
            self.embedding = base.model.embed_tokens.weight.to(dtype, copy=True)
            self.lm_head = self._pack(base.lm_head, norm=base.model.norm)

    def sync(self) -> None:
        """Copy the model's current weights."""
        base = base_model(self._model)
        with torch.no_grad():
            for layer, source in zip(self.layers, base.model.layers, strict=True):
                current = self._pack_layer(source)
                for name in (field.name for field in fields(PackedLayer)):
                    if (weight := getattr(current, name)) is not None:
                        getattr(layer, name).copy_(weight)
            self.embedding.copy_(base.model.embed_tokens.weight)
            self.lm_head.copy_(self._pack(base.lm_head, norm=base.model.norm))

    def _pack_layer(self, source: Module) -> PackedLayer:
        attention, mlp = source.self_attn, source.mlp
        qkv = attention.q_proj, attention.k_proj, attention.v_proj
        qkv_biases = [bias for linear in qkv if (bias := _effective_bias(linear)) is not None]
        o_bias = _effective_bias(attention.o_proj)
        # Models that normalize the MLP's output normalize the attention's output, too.
        post_mlp_norm = getattr(source, "post_feedforward_layernorm", None)
        post_attention_norm, mlp_norm = None, source.post_attention_layernorm
        if post_mlp_norm is not None:
            post_attention_norm, mlp_norm = mlp_norm, source.pre_feedforward_layernorm
        return PackedLayer(
            qkv=self._pack(*qkv, norm=source.input_layernorm),
            qkv_bias=torch.cat(qkv_biases).to(self.dtype) if qkv_biases else None,
            q_norm=_norm_weight(getattr(attention, "q_norm", None)),
            k_norm=_norm_weight(getattr(attention, "k_norm", None)),
            o_proj=self._pack(attention.o_proj),
            o_bias=None if o_bias is None else o_bias.to(self.dtype, copy=True),
            gate_up=self._pack(mlp.gate_proj, mlp.up_proj, norm=mlp_norm),
            down_proj=self._pack(mlp.down_proj),
            post_attention_norm=_norm_weight(post_attention_norm),
            post_mlp_norm=_norm_weight(post_mlp_norm),
        )

    def _pack(self, *linears: Module, norm: Module | None = None) -> Tensor:
        """The weights one below the other, each column multiplied by the norm's weight."""
        packed = []
        for linear in linears:
            weight = _effective_weight(linear)
            if (factor := _norm_weight(norm)) is not None:
                if not hasattr(linear, "base_layer"):
                    # A trainer that computes in this dtype rounds the weight too. Small changes by
                    # an adapter, which it adds to the output, would be lost.
                    weight = weight.to(self.dtype)
                weight = weight.float() * factor
            packed.append(weight.to(self.dtype))
        return torch.cat(packed)


def base_model(model: PreTrainedModel) -> PreTrainedModel:
    """The transformers model under a PEFT adapter."""
    return model.get_base_model() if hasattr(model, "get_base_model") else model


def _norm_weight(norm: Module | None) -> Tensor | None:
    """Copy an RMSNorm's scale in float32; Gemma's weights are offsets from 1."""
    if norm is None:
        return None
    weight = norm.weight.to(torch.float32, copy=True)
    return 1.0 + weight if type(norm).__name__.startswith("Gemma") else weight


def _effective_weight(linear: Module) -> Tensor:
    """The weight of a linear module with its active LoRA adapters added."""
    if not hasattr(linear, "base_layer"):
        return linear.weight
    weight = linear.base_layer.weight
    if linear.merged or linear.disable_adapters:
        return weight
    for name in linear.active_adapters:
        if name in linear.lora_A:
            weight = weight.float() + linear.get_delta_weight(name).float()
    return weight


def _effective_bias(linear: Module) -> Tensor | None:
    return getattr(getattr(linear, "base_layer", linear), "bias", None)
