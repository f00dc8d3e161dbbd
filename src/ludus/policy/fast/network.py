"""The forward pass of a model of the Llama family over tokens that each have a slot and a position.

A prompt and a batch of replies are the same to it: tokens that see what their slot holds up to
them. What the single operations are is the kernels' business, or their reference's.
"""

from __future__ import annotations

from typing import Any, Protocol

from ludus.policy.fast.blueprint import Blueprint
from ludus.policy.fast.cache import Cache, Room
from ludus.policy.fast.rows import Rows
from ludus.policy.fast.weights import Layer, Weights


class Operations(Protocol):
    """The functions that `reference` and `kernels` have in common."""

    def project(self, x: Any, weight: Any, bias: Any, *, eps: float, dtype: Any) -> Any: ...

    def gated(self, x: Any, weight: Any, *, eps: float) -> Any: ...

    def add(self, x: Any, more: Any, weight: Any, bias: Any) -> None: ...

    def store(self, qkv: Any, layer: Layer, room: Room, blueprint: Blueprint) -> None: ...

    def attend(
        self,
        qkv: Any,
        layer: Layer,
        room: Room,
        blueprint: Blueprint,
        *,
        fresh: bool,
        splits: int,
    ) -> Any: ...

    def sample(self, logits: Any, rows: Rows) -> None: ...


class Network:
    """A model's weights, and the operations that apply them."""

    def __init__(self, blueprint: Blueprint, weights: Weights, operations: Operations) -> None:
        self.blueprint = blueprint
        self.weights = weights
        self.operations = operations

    def read(self, tokens: Any, slots: Any, positions: Any, cache: Cache) -> None:
        """Fill the cache with what these tokens leave behind; tokens of one slot may be many."""
        x = self._embedded(tokens)
        last = self.blueprint.layers - 1
        for index, layer in enumerate(self.weights.layers):
            room = cache.room(index, slots, positions)
            qkv = self._heads(x, layer)
            self.operations.store(qkv, layer, room, self.blueprint)
            if index < last:
                self._pass(x, qkv, layer, room, fresh=False, splits=1)

    def step(self, tokens: Any, slots: Any, positions: Any, cache: Cache, *, splits: int) -> Any:
        """The logits after these tokens, each of which is the last of its slot."""
        import torch

        x = self._embedded(tokens)
        for index, layer in enumerate(self.weights.layers):
            room = cache.room(index, slots, positions)
            self._pass(x, self._heads(x, layer), layer, room, fresh=True, splits=splits)
        head, eps = self.weights.head, self.blueprint.eps
        return self.operations.project(x, head, None, eps=eps, dtype=torch.float32)

    def _embedded(self, tokens: Any) -> Any:
        """In single precision, as all that is added on the way."""
        return self.weights.embedding[tokens].float()

    def _heads(self, x: Any, layer: Layer) -> Any:
        eps, dtype = self.blueprint.eps, self.weights.dtype
        return self.operations.project(x, layer.qkv, layer.qkv_bias, eps=eps, dtype=dtype)

    def _pass(
        self, x: Any, qkv: Any, layer: Layer, room: Room, *, fresh: bool, splits: int
    ) -> None:
        do, shape = self.operations, self.blueprint
        seen = do.attend(qkv, layer, room, shape, fresh=fresh, splits=splits)
        do.add(x, seen, layer.out, layer.out_bias)
        do.add(x, do.gated(x, layer.gate_up, eps=shape.eps), layer.down, None)
