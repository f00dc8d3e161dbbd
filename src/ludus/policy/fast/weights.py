"""A copy of a model's weights as the kernels want them, and how it follows the model's changes.

Queries, keys and values are one matrix, and so are gate and up. The weight of each norm is
multiplied into the matrix after it, so that a norm is no more than a number per row. Copies go to
the same places every time, because captured graphs know them by their addresses.

An adapter is added to its base here, and the model is not touched: to merge and take apart again
would leave it with other weights than it had.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ludus.policy.fast.blueprint import Blueprint
from ludus.policy.fast.matrices import bare, bias_of, weight_of


@dataclass(frozen=True, slots=True)
class Layer:
    qkv: Any
    qkv_bias: Any
    q_norm: Any
    k_norm: Any
    out: Any
    out_bias: Any
    gate_up: Any
    down: Any


class Weights:
    """All that a step reads of the model."""

    def __init__(self, model: Any, blueprint: Blueprint, *, dtype: Any) -> None:
        self.dtype = dtype
        self._model = model
        base = bare(model)
        self.device = base.model.embed_tokens.weight.device
        self.layers = [self._room(layer, blueprint) for layer in base.model.layers]
        shape = blueprint.vocabulary, blueprint.hidden
        self.embedding, self.head = self._empty(*shape), self._empty(*shape)
        self.sync()

    def sync(self) -> None:
        """Take over the weights that the model has now."""
        import torch

        base = bare(self._model)
        with torch.inference_mode():
            for layer, source in zip(self.layers, base.model.layers, strict=True):
                _copy(layer, source)
            self.embedding.copy_(weight_of(base.model.embed_tokens))
            _fill(self.head, [weight_of(base.lm_head)], weight_of(base.model.norm))

    def _empty(self, *shape: int, dtype: Any = None) -> Any:
        import torch

        return torch.empty(shape, dtype=dtype or self.dtype, device=self.device)

    def _room(self, source: Any, blueprint: Blueprint) -> Layer:
        import torch

        attention, size = source.self_attn, blueprint.head_dim
        wide = (blueprint.heads + 2 * blueprint.kv_heads) * size
        queries, hidden, inner = blueprint.heads * size, blueprint.hidden, blueprint.inner

        def vector(there: bool, length: int) -> Any:
            return self._empty(length, dtype=torch.float32) if there else None

        return Layer(
            qkv=self._empty(wide, hidden),
            qkv_bias=vector(bias_of(attention.q_proj) is not None, wide),
            q_norm=vector(blueprint.normed, size),
            k_norm=vector(blueprint.normed, size),
            out=self._empty(hidden, queries),
            out_bias=vector(bias_of(attention.o_proj) is not None, hidden),
            gate_up=self._empty(2 * inner, hidden),
            down=self._empty(hidden, inner),
        )


def _copy(layer: Layer, source: Any) -> None:
    import torch

    attention, mlp = source.self_attn, source.mlp
    heads = [attention.q_proj, attention.k_proj, attention.v_proj]
    _fill(layer.qkv, map(weight_of, heads), weight_of(source.input_layernorm))
    _fill(layer.out, [weight_of(attention.o_proj)])
    gates = map(weight_of, [mlp.gate_proj, mlp.up_proj])
    _fill(layer.gate_up, gates, weight_of(source.post_attention_layernorm))
    _fill(layer.down, [weight_of(mlp.down_proj)])
    if layer.qkv_bias is not None:
        layer.qkv_bias.copy_(torch.cat([bias_of(head) for head in heads]))
    if layer.out_bias is not None:
        layer.out_bias.copy_(bias_of(attention.o_proj))
    if layer.q_norm is not None:
        layer.q_norm.copy_(weight_of(attention.q_norm))
        layer.k_norm.copy_(weight_of(attention.k_norm))


def _fill(room: Any, parts: Iterator[Any] | list[Any], norm: Any = None) -> None:
    """The parts, one below the other."""
    at = 0
    for part in parts:
        # Rounded once, after both have been multiplied.
        whole = part if norm is None else part.float() * norm.float()
        room[at : at + len(part)].copy_(whole)
        at += len(part)
