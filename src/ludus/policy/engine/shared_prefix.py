"""Attention over a prefix that all rows of a batch have in common, with its cache stored once.

transformers would repeat the prefix in the KV cache of every row and read all of it for every
token. Here rows attend to one copy, in one matrix product, and the cache holds only what they do
not share.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from itertools import repeat
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from torch import Tensor
    from torch.nn import Module
    from transformers import DynamicCache, PreTrainedModel

_ATTENTION_NAME = "ludus_shared_prefix"
_MAX_SCORES = 1 << 26
"""Attention scores that are held at once, which bounds the memory of a prefill."""


class PrefixLayer(NamedTuple):
    """Keys and values of the prefix in a layer, [heads, tokens, size] in float32."""

    keys: Tensor
    values: Tensor


class SharedPrefix:
    """The cache of a prefix. Use `attend` around the model's forward passes."""

    def __init__(self, model: PreTrainedModel, cache: DynamicCache) -> None:
        """Take the entries of a cache with one row."""
        self._config = model.config.get_text_config(decoder=True)
        self._layers = [
            PrefixLayer(layer.keys[0].float(), layer.values[0].float()) for layer in cache.layers
        ]

    @contextmanager
    def attend(self) -> Iterator[None]:
        """Let the model attend to the prefix besides the entries of its cache."""
        from transformers import AttentionInterface, AttentionMaskInterface
        from transformers.masking_utils import sdpa_mask

        AttentionInterface.register(_ATTENTION_NAME, _attention)
        AttentionMaskInterface.register(_ATTENTION_NAME, sdpa_mask)
        before = self._config._attn_implementation
        token = _attended_layers.set(self._layers)
        self._config._attn_implementation = _ATTENTION_NAME
        try:
            yield
        finally:
            self._config._attn_implementation = before
            _attended_layers.reset(token)


_attended_layers: ContextVar[list[PrefixLayer]] = ContextVar("_attended_layers")


def supports_shared_prefix(model: PreTrainedModel) -> bool:
    """Whether the model's attention is a function that can be replaced, on a CPU.

    On a GPU a step takes as long as launching its kernels, and there would be more of them.
    """
    base = model.get_base_model() if hasattr(model, "get_base_model") else model
    config = model.config.get_text_config(decoder=True)
    replaceable = base.is_backend_compatible() and config._attn_implementation == "sdpa"
    return bool(replaceable and model.device.type == "cpu")


def _attention(
    module: Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    scaling: float | None = None,
    **options: object,
) -> tuple[Tensor, None]:
    """The attention of transformers' interface; `key` and `value` lack the prefix."""
    import torch

    prefix = _attended_layers.get()[module.layer_idx]
    num_rows, num_heads, length, size = query.shape
    dtype = query.dtype
    # Scores need float32, as in torch's own kernels.
    query, key, value = query.float(), key.float(), value.float()
    query = query * (size**-0.5 if scaling is None else scaling)
    if attention_mask is None and length > 1:
        attention_mask = query.new_ones(length, key.shape[2], dtype=torch.bool).tril(
            key.shape[2] - length
        )[None, None]
    heads = key.shape[1]
    num_scores = num_heads * length * (prefix.keys.shape[1] + key.shape[2])
    block = max(1, _MAX_SCORES // num_scores)
    masks: Iterable[Tensor | None] = repeat(None)
    if attention_mask is not None:
        masks = attention_mask.expand(num_rows, -1, -1, -1).split(block)
    blocks = []
    for q, k, v, mask in zip(
        query.split(block), key.split(block), value.split(block), masks, strict=False
    ):
        # Query heads that read the same keys are rows of one product.
        grouped = q.reshape(len(q), heads, -1, size)
        own = grouped @ k.transpose(2, 3)
        if mask is not None:
            by_head = own.view(len(q), heads, -1, length, key.shape[2])
            own = by_head.masked_fill(~mask[:, :, None], float("-inf")).view(own.shape)
        common = _by_row(_by_head(grouped) @ prefix.keys.transpose(1, 2), len(q))
        weights = torch.cat([common, own], dim=-1).softmax(dim=-1)
        common, own = weights.split([common.shape[-1], own.shape[-1]], dim=-1)
        output = own @ v + _by_row(_by_head(common) @ prefix.values, len(q))
        blocks.append(output.reshape(len(q), num_heads, length, size))
    output = blocks[0] if len(blocks) == 1 else torch.cat(blocks)
    return output.transpose(1, 2).to(dtype).contiguous(), None


def _by_head(states: Tensor) -> Tensor:
    """[rows, heads, queries, size] as [heads, rows * queries, size]."""
    return states.transpose(0, 1).reshape(states.shape[1], -1, states.shape[3])


def _by_row(states: Tensor, num_rows: int) -> Tensor:
    """The inverse of `_by_head`."""
    return states.view(states.shape[0], num_rows, -1, states.shape[2]).transpose(0, 1)
