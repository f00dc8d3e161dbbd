"""The forward pass of a model of the Llama family over tokens that each have a slot and a position.

A prompt and a batch of replies are the same to it: tokens that see what their slot holds up to
them. What the single operations are is the kernels' business, or their reference's.
"""

from __future__ import annotations

from typing import Any, Protocol

from ludus.policy.triton_engine.batch_state import BatchState
from ludus.policy.triton_engine.kv_cache import KVCache, LayerCache
from ludus.policy.triton_engine.model_shape import ModelShape
from ludus.policy.triton_engine.packed_weights import PackedLayer, PackedWeights


class Operations(Protocol):
    """The functions that `reference` and `kernels` have in common."""

    def project(self, x: Any, weight: Any, bias: Any, *, eps: float, dtype: Any) -> Any: ...

    def gated(self, x: Any, weight: Any, *, eps: float) -> Any: ...

    def add(self, x: Any, more: Any, weight: Any, bias: Any) -> None: ...

    def store(
        self, qkv: Any, layer: PackedLayer, room: LayerCache, blueprint: ModelShape
    ) -> None: ...

    def attend(
        self,
        qkv: Any,
        layer: PackedLayer,
        room: LayerCache,
        blueprint: ModelShape,
        *,
        fresh: bool,
        splits: int,
    ) -> Any: ...

    def sample(self, logits: Any, rows: BatchState) -> None: ...


class LlamaForward:
    """A model's weights, and the operations that apply them."""

    def __init__(
        self, blueprint: ModelShape, weights: PackedWeights, operations: Operations
    ) -> None:
        self.shape = blueprint
        self.weights = weights
        self.operations = operations

    def prefill(self, tokens: Any, slots: Any, positions: Any, cache: KVCache) -> None:
        """Fill the cache with what these tokens leave behind; tokens of one slot may be many."""
        x = self._embed(tokens)
        last = self.shape.num_layers - 1
        for index, layer in enumerate(self.weights.layers):
            room = cache.layer_view(index, slots, positions)
            qkv = self._project_qkv(x, layer)
            self.operations.store(qkv, layer, room, self.shape)
            if index < last:
                self._run_layer(x, qkv, layer, room, fresh=False, splits=1)

    def decode(
        self, tokens: Any, slots: Any, positions: Any, cache: KVCache, *, splits: int
    ) -> Any:
        """The logits after these tokens, each of which is the last of its slot."""
        import torch

        x = self._embed(tokens)
        for index, layer in enumerate(self.weights.layers):
            room = cache.layer_view(index, slots, positions)
            self._run_layer(x, self._project_qkv(x, layer), layer, room, fresh=True, splits=splits)
        head, eps = self.weights.lm_head, self.shape.eps
        return self.operations.project(x, head, None, eps=eps, dtype=torch.float32)

    def _embed(self, tokens: Any) -> Any:
        """In single precision, as all that is added on the way."""
        return self.weights.embedding[tokens].float()

    def _project_qkv(self, x: Any, layer: PackedLayer) -> Any:
        eps, dtype = self.shape.eps, self.weights.dtype
        return self.operations.project(x, layer.qkv, layer.qkv_bias, eps=eps, dtype=dtype)

    def _run_layer(
        self, x: Any, qkv: Any, layer: PackedLayer, room: LayerCache, *, fresh: bool, splits: int
    ) -> None:
        do, shape = self.operations, self.shape
        seen = do.attend(qkv, layer, room, shape, fresh=fresh, splits=splits)
        do.add(x, seen, layer.o_proj, layer.o_bias)
        do.add(x, do.gated(x, layer.gate_up, eps=shape.eps), layer.down_proj, None)
