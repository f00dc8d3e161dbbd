"""The shape of a model of the Llama family, or the reason in words why it is of another kind.

Only what a config and the kinds of modules say is looked at here. Weights are
`ludus.policy.fast.weights`' business, and whether the numbers come out right that of
`ludus.policy.fast.trial`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ludus.policy.fast.matrices import bare, bias_of, chosen

FAMILIES = ("LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM")
_FIXED_ROPES = ("default", "linear", "llama3", "yarn")
"""Rotations that depend on the position alone, and not on how long the text has become."""
_SMALLEST_HEAD = 16
"""What a matrix unit multiplies at the least."""


@dataclass(frozen=True, slots=True)
class Blueprint:
    """What the kernels have to know."""

    layers: int
    hidden: int
    inner: int
    heads: int
    kv_heads: int
    head_dim: int
    vocabulary: int
    eps: float
    scale: float
    """What products of queries and keys are multiplied with."""
    normed: bool
    """Whether each query and key is normalized."""
    context: int

    @property
    def group(self) -> int:
        """Query heads that share one head of keys and values."""
        return self.heads // self.kv_heads


def blueprint_of(model: Any) -> Blueprint | str:
    """The model's shape; or why it cannot be decoded this way."""
    base = bare(model)
    kind = type(base).__name__
    if kind not in FAMILIES:
        return f"{kind} is none of {', '.join(FAMILIES)}"
    reason = _oddity(base)
    return _drawn(base) if reason is None else f"this {kind} {reason}"


def _oddity(base: Any) -> str | None:
    """What sets it apart from its family, if anything does."""
    config, layers = base.config, base.model.layers
    size = layers[0].self_attn.head_dim
    rope = getattr(base.model.rotary_emb, "rope_type", "default")
    read = getattr(chosen(base.model.embed_tokens), "num_embeddings", None)
    written = getattr(chosen(base.lm_head), "out_features", None)
    oddities = {
        "has windows that slide": _slides(config),
        f"has the activation {config.hidden_act}": config.hidden_act not in ("silu", "swish"),
        "has other activations in some layers": any(map(_activated_otherwise, layers)),
        f"has positions of the kind {rope}": rope not in _FIXED_ROPES,
        f"has heads of {size} numbers": size < _SMALLEST_HEAD or size & (size - 1) != 0,
        "has a bias in its inner layers or its head": any(map(_has_bias, _unbiased(base))),
        "has a bias for some of its heads": any(map(_biased_in_part, layers)),
        f"reads {read} tokens and writes {written}": None not in (read, written)
        and read != written,
        "lies on several devices": len({each.device for each in base.parameters()}) > 1,
    }
    return next((words for words, holds in oddities.items() if holds), None)


def _activated_otherwise(layer: Any) -> bool:
    return type(layer.mlp.act_fn).__name__ not in ("SiLU", "SiLUActivation")


def _unbiased(base: Any) -> Iterator[Any]:
    """What the kernels take for matrices without a bias."""
    yield base.lm_head
    for layer in base.model.layers:
        yield from (layer.mlp.gate_proj, layer.mlp.up_proj, layer.mlp.down_proj)


def _biased_in_part(layer: Any) -> bool:
    attention = layer.self_attn
    heads = attention.q_proj, attention.k_proj, attention.v_proj
    return len({_has_bias(each) for each in heads}) > 1


def _has_bias(linear: Any) -> bool:
    return bias_of(linear) is not None


def _slides(config: Any) -> bool:
    kinds = getattr(config, "layer_types", None)
    if kinds is not None and any(kind != "full_attention" for kind in kinds):
        return True
    window = getattr(config, "sliding_window", None) if kinds is None else None
    return window is not None and window < config.max_position_embeddings


def _drawn(base: Any) -> Blueprint:
    config, attention = base.config, base.model.layers[0].self_attn
    return Blueprint(
        layers=config.num_hidden_layers,
        hidden=config.hidden_size,
        inner=config.intermediate_size,
        heads=config.num_attention_heads,
        kv_heads=config.num_key_value_heads,
        head_dim=attention.head_dim,
        vocabulary=base.get_input_embeddings().weight.shape[0],
        eps=config.rms_norm_eps,
        scale=attention.scaling,
        normed=hasattr(attention, "q_norm"),
        context=config.max_position_embeddings,
    )
