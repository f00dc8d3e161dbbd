"""The shape of a model of the Llama family, or the reason in words why it is of another kind.

Only what a config and the kinds of modules say is looked at here. Weights are
`ludus.policy.triton_engine.packed_weights`' business, and whether the numbers come out right that of
`ludus.policy.triton_engine.self_test`.
"""

from __future__ import annotations

from collections.abc import Iterator
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
"""Rotations that depend on the position alone, and not on how long the text has become."""
_MIN_HEAD_DIM = 16
"""What a matrix unit multiplies at the least."""


@dataclass(frozen=True, slots=True)
class ModelShape:
    """What the kernels have to know."""

    num_layers: int
    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    eps: float
    softmax_scale: float
    """What products of queries and keys are multiplied with."""
    qk_norm: bool
    """Whether each query and key is normalized."""
    context_length: int

    @property
    def queries_per_kv_head(self) -> int:
        """Query heads that share one head of keys and values."""
        return self.num_heads // self.num_kv_heads


def read_model_shape(model: Any) -> ModelShape | str:
    """The model's shape; or why it cannot be decoded this way."""
    base = base_model(model)
    kind = type(base).__name__
    if kind not in SUPPORTED_ARCHITECTURES:
        return f"{kind} is none of {', '.join(SUPPORTED_ARCHITECTURES)}"
    reason = _unsupported_feature(base)
    return _build_shape(base) if reason is None else f"this {kind} {reason}"


def _unsupported_feature(base: Any) -> str | None:
    """What sets it apart from its family, if anything does."""
    config, layers = base.config, base.model.layers
    size = layers[0].self_attn.head_dim
    rope = getattr(base.model.rotary_emb, "rope_type", "default")
    read = getattr(active_module(base.model.embed_tokens), "num_embeddings", None)
    written = getattr(active_module(base.lm_head), "out_features", None)
    oddities = {
        "has windows that slide": _has_sliding_window(config),
        f"has the activation {config.hidden_act}": config.hidden_act not in ("silu", "swish"),
        "has other activations in some layers": any(map(_has_other_activation, layers)),
        f"has positions of the kind {rope}": rope not in _STATIC_ROPE_TYPES,
        f"has heads of {size} numbers": size < _MIN_HEAD_DIM or size & (size - 1) != 0,
        "has a bias in its inner layers or its head": any(map(_has_bias, _bias_free_linears(base))),
        "has a bias for some of its heads": any(map(_is_partly_biased, layers)),
        f"reads {read} tokens and writes {written}": None not in (read, written)
        and read != written,
        "lies on several devices": len({each.device for each in base.parameters()}) > 1,
    }
    return next((words for words, holds in oddities.items() if holds), None)


def _has_other_activation(layer: Any) -> bool:
    return type(layer.mlp.act_fn).__name__ not in ("SiLU", "SiLUActivation")


def _bias_free_linears(base: Any) -> Iterator[Any]:
    """What the kernels take for matrices without a bias."""
    yield base.lm_head
    for layer in base.model.layers:
        yield from (layer.mlp.gate_proj, layer.mlp.up_proj, layer.mlp.down_proj)


def _is_partly_biased(layer: Any) -> bool:
    attention = layer.self_attn
    heads = attention.q_proj, attention.k_proj, attention.v_proj
    return len({_has_bias(each) for each in heads}) > 1


def _has_bias(linear: Any) -> bool:
    return effective_bias(linear) is not None


def _has_sliding_window(config: Any) -> bool:
    kinds = getattr(config, "layer_types", None)
    if kinds is not None and any(kind != "full_attention" for kind in kinds):
        return True
    window = getattr(config, "sliding_window", None) if kinds is None else None
    return window is not None and window < config.max_position_embeddings


def _build_shape(base: Any) -> ModelShape:
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
