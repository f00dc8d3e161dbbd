"""Attention of packed groups on a GPU: flash attention in two parts, merged by their log-sum-exp.

Every segment attends to itself, causally; and the episodes of a group attend to its prompt, all of
which lies before them. The softmax over both is the mean of the parts, weighted by the sums of
their exponentials. For the backward pass each part gets the merged output and log-sum-exp, as in
ring attention: the parts' gradients then add up to the gradient of the whole.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch

from ludus.train.grpo.packed_groups import PackedGroups

if TYPE_CHECKING:
    from torch import Tensor, nn
    from transformers import PreTrainedModel

ATTENTION_NAME = "ludus_groups"
_current: PackedGroups | None = None
"""The sequence in the forward or backward pass. Layers are compiled, and a tensor that came with
the call would be a reason to compile them again."""


@contextmanager
def group_attention(model: PreTrainedModel, packed: PackedGroups) -> Iterator[None]:
    """Let the model attend within this sequence of packed groups, forward and backward."""
    from transformers import AttentionInterface

    global _current
    AttentionInterface.register(ATTENTION_NAME, _UNCOMPILED_ATTENTION)
    before, _current = model.config._attn_implementation, packed
    model.set_attn_implementation(ATTENTION_NAME)
    try:
        yield
    finally:
        _current = None
        model.set_attn_implementation(before)


def _attention(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: None,
    scaling: float | None = None, **_: object,
) -> tuple[Tensor, None]:  # fmt: skip
    """Attention with transformers' signature: tensors are (1, heads, tokens, dim)."""
    assert _current is not None
    # (tokens, heads, dim). Under autocast, rotary embeddings leave queries and keys in float32.
    parts = [each.squeeze(0).transpose(0, 1).to(value.dtype) for each in (query, key, value)]
    return _GroupAttention.apply(*parts, _current, scaling).unsqueeze(0), None


# The same object for all calls: layers would be compiled again for another one.
_UNCOMPILED_ATTENTION = torch.compiler.disable(_attention)


class _GroupAttention(torch.autograd.Function):  # type: ignore[misc]
    @staticmethod
    def forward(
        ctx: Any, query: Tensor, key: Tensor, value: Tensor, packed: PackedGroups, scale: float
    ) -> Tensor:
        output, lse, *own_rng = _flash_forward(
            query, key, value, packed.segments, packed.segments, packed.longest_segment,
            packed.longest_segment, True, scale,
        )  # fmt: skip
        rng: list[Tensor] = []
        if len(index := packed.member_index):
            to = packed.prompt_index
            other, other_lse, *rng = _flash_forward(
                query[index], key[to], value[to], packed.members, packed.prompts,
                packed.longest_group, packed.longest_prompt, False, scale,
            )  # fmt: skip
            own, own_lse = output[index], lse[:, index]
            merged_lse = torch.logaddexp(own_lse, other_lse)
            # (heads, tokens) -> (tokens, heads, 1)
            weight = (own_lse - merged_lse).exp().T.unsqueeze(-1)
            output[index] = torch.lerp(other.float(), own.float(), weight).to(output.dtype)
            lse[:, index] = merged_lse
        ctx.save_for_backward(query, key, value, output, lse)
        ctx.packed, ctx.scale, ctx.rng = packed, scale, (own_rng, rng)
        return output

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, output, lse = ctx.saved_tensors
        packed, (own_rng, rng) = ctx.packed, ctx.rng
        gradient = gradient.contiguous()
        dq, dk, dv = torch.ops.aten._flash_attention_backward(
            gradient, query, key, value, output, lse, packed.segments, packed.segments,
            packed.longest_segment, packed.longest_segment, 0.0, True, *own_rng, scale=ctx.scale,
        )  # fmt: skip
        if len(index := packed.member_index):
            to = packed.prompt_index
            others = torch.ops.aten._flash_attention_backward(
                gradient[index], query[index], key[to], value[to], output[index],
                lse[:, index].contiguous(), packed.members, packed.prompts,
                packed.longest_group, packed.longest_prompt, 0.0, False, *rng, scale=ctx.scale,
            )  # fmt: skip
            for total, part, at in zip((dq, dk, dv), others, (index, to, to), strict=True):
                total.index_add_(0, at, part)
        return dq, dk, dv, None, None


def _flash_forward(
    query: Tensor, key: Tensor, value: Tensor, query_bounds: Tensor, key_bounds: Tensor,
    longest_query: int, longest_key: int, causal: bool, scale: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Output (tokens, heads, dim), log-sum-exp (heads, tokens), and two for the backward pass."""
    output, lse, rng, unused, _ = torch.ops.aten._flash_attention_forward(
        query, key, value, query_bounds, key_bounds, longest_query, longest_key, 0.0, causal, False,
        scale=scale,
    )  # fmt: skip
    return output, lse, rng, unused
