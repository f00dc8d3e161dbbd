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

from ludus.policy.triton_engine.linear_weights import base_model, effective_bias, effective_weight
from ludus.policy.triton_engine.model_shape import ModelShape


@dataclass(frozen=True, slots=True)
class PackedLayer:
    qkv: Any
    qkv_bias: Any
    q_norm: Any
    k_norm: Any
    o_proj: Any
    o_bias: Any
    gate_up: Any
    down_proj: Any


class PackedWeights:
    """All that a step reads of the model."""

    def __init__(self, model: Any, blueprint: ModelShape, *, dtype: Any) -> None:
        self.dtype = dtype
        self._model = model
        base = base_model(model)
        self.device = base.model.embed_tokens.weight.device
        self.layers = [self._allocate_layer(layer, blueprint) for layer in base.model.layers]
        shape = blueprint.vocab_size, blueprint.hidden_size
        self.embedding, self.lm_head = self._empty(*shape), self._empty(*shape)
        self.sync()

    def sync(self) -> None:
        """Take over the weights that the model has now."""
        import torch

        base = base_model(self._model)
        with torch.inference_mode():
            for layer, source in zip(self.layers, base.model.layers, strict=True):
                _copy_layer(layer, source)
            self.embedding.copy_(effective_weight(base.model.embed_tokens))
            _pack_rows(
                self.lm_head, [effective_weight(base.lm_head)], effective_weight(base.model.norm)
            )

    def _empty(self, *shape: int, dtype: Any = None) -> Any:
        import torch

        return torch.empty(shape, dtype=dtype or self.dtype, device=self.device)

    def _allocate_layer(self, source: Any, blueprint: ModelShape) -> PackedLayer:
        import torch

        attention, size = source.self_attn, blueprint.head_dim
        wide = (blueprint.num_heads + 2 * blueprint.num_kv_heads) * size
        queries, hidden, inner = (
            blueprint.num_heads * size,
            blueprint.hidden_size,
            blueprint.intermediate_size,
        )

        def vector(there: bool, length: int) -> Any:
            return self._empty(length, dtype=torch.float32) if there else None

        return PackedLayer(
            qkv=self._empty(wide, hidden),
            qkv_bias=vector(effective_bias(attention.q_proj) is not None, wide),
            q_norm=vector(blueprint.qk_norm, size),
            k_norm=vector(blueprint.qk_norm, size),
            o_proj=self._empty(hidden, queries),
            o_bias=vector(effective_bias(attention.o_proj) is not None, hidden),
            gate_up=self._empty(2 * inner, hidden),
            down_proj=self._empty(hidden, inner),
        )


def _copy_layer(layer: PackedLayer, source: Any) -> None:
    import torch

    attention, mlp = source.self_attn, source.mlp
    heads = [attention.q_proj, attention.k_proj, attention.v_proj]
    _pack_rows(layer.qkv, map(effective_weight, heads), effective_weight(source.input_layernorm))
    _pack_rows(layer.o_proj, [effective_weight(attention.o_proj)])
    gates = map(effective_weight, [mlp.gate_proj, mlp.up_proj])
    _pack_rows(layer.gate_up, gates, effective_weight(source.post_attention_layernorm))
    _pack_rows(layer.down_proj, [effective_weight(mlp.down_proj)])
    if layer.qkv_bias is not None:
        layer.qkv_bias.copy_(torch.cat([effective_bias(head) for head in heads]))
    if layer.o_bias is not None:
        layer.o_bias.copy_(effective_bias(attention.o_proj))
    if layer.q_norm is not None:
        layer.q_norm.copy_(effective_weight(attention.q_norm))
        layer.k_norm.copy_(effective_weight(attention.k_norm))


def _pack_rows(room: Any, parts: Iterator[Any] | list[Any], norm: Any = None) -> None:
    """The parts, one below the other."""
    at = 0
    for part in parts:
        # Rounded once, after both have been multiplied.
        whole = part if norm is None else part.float() * norm.float()
        room[at : at + len(part)].copy_(whole)
        at += len(part)
