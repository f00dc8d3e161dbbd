"""The shape of a model of the Llama family, or the reason why the engine does not support it.

Looks at the config and the types of modules only. `linear_weights` checks the weights, and
`self_test` compares the results.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ludus.policy.triton_engine.linear_weights import active_module, base_model, effective_bias

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


def read_model_shape(model: Any) -> ModelShape | str:
    """The model's shape, or the reason why it cannot be decoded by this engine."""
    base = base_model(model)
    architecture = type(base).__name__
    if architecture not in SUPPORTED_ARCHITECTURES:
        return f"{architecture} is none of {', '.join(SUPPORTED_ARCHITECTURES)}"
    reason = _unsupported_feature(base)
    if reason is not None:
        return f"this {architecture} {reason}"
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


def _unsupported_feature(base: Any) -> str | None:
    """What sets the model apart from its family, if anything does."""
    config, layers = base.config, base.model.layers
    head_dim = layers[0].self_attn.head_dim
    rope_type = getattr(base.model.rotary_emb, "rope_type", "default")
    vocab_in = getattr(active_module(base.model.embed_tokens), "num_embeddings", None)
    vocab_out = getattr(active_module(base.lm_head), "out_features", None)
    layer_types = getattr(config, "layer_types", None)
    if layer_types is None:
        window = getattr(config, "sliding_window", None)
        has_window = window is not None and window < config.max_position_embeddings
    else:
        has_window = any(layer_type != "full_attention" for layer_type in layer_types)
    if has_window:
        return "has sliding-window attention"
    if config.hidden_act not in ("silu", "swish"):
        return f"has the activation {config.hidden_act}"
    if any(type(layer.mlp.act_fn).__name__ not in ("SiLU", "SiLUActivation") for layer in layers):
        return "has other activations in some layers"
    if rope_type not in _STATIC_ROPE_TYPES:
        return f"has rotary embeddings of the type {rope_type}"
    if head_dim < _MIN_HEAD_DIM or head_dim & (head_dim - 1) != 0:
        return f"has a head_dim of {head_dim}"
    mlps = [layer.mlp for layer in layers]
    mlp_linears = [linear for mlp in mlps for linear in (mlp.gate_proj, mlp.up_proj, mlp.down_proj)]
    if any(effective_bias(linear) is not None for linear in (base.lm_head, *mlp_linears)):
        return "has a bias in its MLP or its lm_head"
    for attention in (layer.self_attn for layer in layers):
        projections = attention.q_proj, attention.k_proj, attention.v_proj
        if len({effective_bias(linear) is not None for linear in projections}) > 1:
            return "has a bias in some of its attention projections"
    if None not in (vocab_in, vocab_out) and vocab_in != vocab_out:
        return f"embeds {vocab_in} tokens and predicts {vocab_out}"
    if len({parameter.device for parameter in base.parameters()}) > 1:
        return "is spread over several devices"
    return None
