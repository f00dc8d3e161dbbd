"""The forward pass of a model of the Llama family over the KV cache.

Every token has a cache slot and a position, and attends to its slot up to that position. So a batch
of prompts and a batch of single new tokens run through the same code.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ludus.policy.triton_engine.kv_cache import KVCache, LayerCache
from ludus.policy.triton_engine.model_weights import ModelShape, PackedLayer, PackedWeights
from ludus.policy.triton_engine.reference_ops import ReferenceOps


class LlamaForward:
    """A model's packed weights, and the operations that apply them.

    `tokens`, `slots` and `positions` are int64 tensors of shape [rows]. The hidden state `x` is
    [rows, hidden_size] in float32, and residuals are added to it in place.
    """

    def __init__(self, shape: ModelShape, weights: PackedWeights, operations: ReferenceOps) -> None:
        self.shape = shape
        self.weights = weights
        self.operations = operations

    def prefill(self, tokens: Tensor, slots: Tensor, positions: Tensor, cache: KVCache) -> None:
        """Write the keys and values of prompt tokens to the cache; a slot may have many of them."""
        x = self.weights.embedding[tokens].float()
        last = self.shape.num_layers - 1
        for index, layer in enumerate(self.weights.layers):
            layer_cache = cache.layer_view(index, slots, positions)
            qkv = self._project_qkv(x, layer)
            self.operations.store_kv(qkv, layer, layer_cache, self.shape)
            # Nothing reads the output of the last layer.
            if index < last:
                self._finish_layer(x, qkv, layer, layer_cache, write_kv=False, splits=1)

    def decode(
        self, tokens: Tensor, slots: Tensor, positions: Tensor, cache: KVCache, *, splits: int
    ) -> Tensor:
        """Logits [rows, vocab_size] after these tokens, each of which is the last of its slot."""
        x = self.weights.embedding[tokens].float()
        for index, layer in enumerate(self.weights.layers):
            layer_cache = cache.layer_view(index, slots, positions)
            qkv = self._project_qkv(x, layer)
            self._finish_layer(x, qkv, layer, layer_cache, write_kv=True, splits=splits)
        return self.operations.norm_linear(
            x, self.weights.lm_head, None, eps=self.shape.eps, dtype=torch.float32
        )

    def _project_qkv(self, x: Tensor, layer: PackedLayer) -> Tensor:
        return self.operations.norm_linear(
            x, layer.qkv, layer.qkv_bias, eps=self.shape.eps, dtype=self.weights.dtype
        )

    def _finish_layer(
        self,
        x: Tensor,
        qkv: Tensor,
        layer: PackedLayer,
        layer_cache: LayerCache,
        *,
        write_kv: bool,
        splits: int,
    ) -> None:
        """Attention and MLP of one layer, added to x."""
        ops, shape = self.operations, self.shape
        attended = ops.decode_attention(
            qkv, layer, layer_cache, shape, write_kv=write_kv, splits=splits
        )
        ops.linear_residual(x, attended, layer.o_proj, layer.o_bias)
        gated = ops.norm_swiglu(x, layer.gate_up, eps=shape.eps)
        ops.linear_residual(x, gated, layer.down_proj, None)
