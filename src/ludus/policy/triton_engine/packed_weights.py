"""A copy of a model's weights in the layout of the kernels, and its update from the model.

q, k and v are one matrix, and so are gate and up. The weight of each RMSNorm is folded into the
matrix after it, so that at runtime a norm is one factor per row. Updates are written in place,
because captured CUDA graphs hold the addresses.

A LoRA adapter is added to its base here, in the copy. The model is not touched: merging and
unmerging would leave it with slightly different weights.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ludus.policy.triton_engine.linear_weights import (
    base_model,
    effective_bias,
    effective_weight,
    has_adapter,
)
from ludus.policy.triton_engine.model_shape import ModelShape


@dataclass(frozen=True, slots=True)
class PackedLayer:
    """Weights of one layer; matrices are [out_features, in_features], as in `nn.Linear`."""

    qkv: Any
    qkv_bias: Any
    q_norm: Any
    k_norm: Any
    o_proj: Any
    o_bias: Any
    gate_up: Any
    down_proj: Any


class PackedWeights:
    """All weights that a forward pass reads."""

    def __init__(self, model: Any, shape: ModelShape, *, dtype: Any) -> None:
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
        import torch

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
                    layer.qkv_bias.copy_(torch.cat([effective_bias(linear) for linear in qkv]))
                if layer.o_bias is not None:
                    layer.o_bias.copy_(effective_bias(attention.o_proj))
                if layer.q_norm is not None:
                    layer.q_norm.copy_(effective_weight(attention.q_norm))
                    layer.k_norm.copy_(effective_weight(attention.k_norm))
            self.embedding.copy_(effective_weight(base.model.embed_tokens))
            _pack(self.lm_head, [base.lm_head], norm=base.model.norm)

    def _empty(self, *shape: int, dtype: Any = None) -> Any:
        import torch

        return torch.empty(shape, dtype=dtype or self.dtype, device=self.device)

    def _allocate_layer(self, source: Any, shape: ModelShape) -> PackedLayer:
        import torch

        attention, hidden = source.self_attn, shape.hidden_size
        q_size = shape.num_heads * shape.head_dim
        qkv_size = q_size + 2 * shape.num_kv_heads * shape.head_dim

        def vector(exists: bool, length: int) -> Any:
            return self._empty(length, dtype=torch.float32) if exists else None

        return PackedLayer(
            qkv=self._empty(qkv_size, hidden),
            qkv_bias=vector(effective_bias(attention.q_proj) is not None, qkv_size),
            q_norm=vector(shape.qk_norm, shape.head_dim),
            k_norm=vector(shape.qk_norm, shape.head_dim),
            o_proj=self._empty(hidden, q_size),
            o_bias=vector(effective_bias(attention.o_proj) is not None, hidden),
            gate_up=self._empty(2 * shape.intermediate_size, hidden),
            down_proj=self._empty(hidden, shape.intermediate_size),
        )


def _pack(target: Any, linears: Sequence[Any], *, norm: Any = None) -> None:
    """Copy the weights one below the other, each column multiplied by the norm's weight."""
    scale = None if norm is None else effective_weight(norm).float()
    start = 0
    for linear in linears:
        weight = effective_weight(linear)
        end = start + len(weight)
        if scale is not None:
            if not has_adapter(linear):
                # A trainer that computes in this dtype rounds the weight too. Small changes by an
                # adapter, which it adds to the output, would be lost.
                weight = weight.to(target.dtype)
            weight = weight.float() * scale
        target[start:end].copy_(weight)
        start = end
