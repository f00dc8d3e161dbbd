"""The forward pass of a model of the Llama family over the KV cache.

Every token has a cache slot and a position, and attends to its slot up to that position.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from ludus.policy.triton_engine.kv_cache import KVCache
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

    def prompt_rows(
        self, ids: Sequence[int], slot: int, cache: KVCache, *, start: int = 0
    ) -> NDArray[np.int64]:
        """Lay out the ids of a slot from `start` on: tokens, slots and positions, [3, rows].

        Rows are padded to full chunks.
        """
        number, chunk = len(ids) - start, self.operations.prefill_chunk
        rows = np.empty((3, -(-number // chunk) * chunk), dtype=np.int64)
        rows[0, :number], rows[1, :number] = ids[start:], slot
        rows[2, :number] = np.arange(start, len(ids))
        rows[:, number:] = cache.padding_row
        return rows

    def prefill(self, tokens: Tensor, slots: Tensor, positions: Tensor, cache: KVCache) -> None:
        """Write the keys and values of prompt tokens to the cache.

        A slot may have many rows, as `prompt_rows` lays them out.
        """
        x = self.weights.embedding[tokens].float() * self.shape.embedding_scale
        normed = self._add_norm(x, None)
        last = self.shape.num_layers - 1
        for index, layer in enumerate(self.weights.layers):
            layer_cache = cache.layer_view(index, slots, positions)
            qkv = self.operations.linear(normed, layer.qkv, layer.qkv_bias)
            self.operations.store_kv(qkv, layer, layer_cache, self.shape)
            if index == last:
                return  # Nothing reads its output.
            attended = self.operations.prefill_attention(qkv, layer, layer_cache, self.shape)
            normed = self._finish_layer(x, attended, layer)

    def decode(
        self, tokens: Tensor, slots: Tensor, positions: Tensor, cache: KVCache, *, splits: int
    ) -> Tensor:
        """Logits [rows, vocab_size] after these tokens, each of which is the last of its slot."""
        x = self.weights.embedding[tokens].float() * self.shape.embedding_scale
        normed = self._add_norm(x, None)
        for index, layer in enumerate(self.weights.layers):
            layer_cache = cache.layer_view(index, slots, positions)
            qkv = self.operations.linear(normed, layer.qkv, layer.qkv_bias)
            attended = self.operations.decode_attention(
                qkv, layer, layer_cache, self.shape, splits=splits
            )
            normed = self._finish_layer(x, attended, layer)
        return self.operations.linear(normed, self.weights.lm_head, exact=True)

    def _finish_layer(self, x: Tensor, attended: Tensor, layer: PackedLayer) -> Tensor:
        """Add the outputs of attention and MLP to x; returns x normalized."""
        ops = self.operations
        delta = ops.linear(attended, layer.o_proj, layer.o_bias)
        normed = self._add_norm(x, delta, layer.post_attention_norm)
        gated = ops.gated_mlp(ops.linear(normed, layer.gate_up), gelu=self.shape.gelu)
        return self._add_norm(x, ops.linear(gated, layer.down_proj), layer.post_mlp_norm)

    def _add_norm(
        self, x: Tensor, delta: Tensor | None, delta_norm: Tensor | None = None
    ) -> Tensor:
        return self.operations.add_norm(
            x, delta, delta_norm, eps=self.shape.eps, dtype=self.weights.dtype
        )
