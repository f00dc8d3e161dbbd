"""Attention on packed sequences for training: tokens attend only within their row or group.

Rows (SFT, DPO): each attends only to itself. A batch is one long sequence with the boundaries of
its rows (`cu_seq_lens`), for which PyTorch has a kernel, `varlen_attn`.

Groups of episodes (GRPO, `packed_groups`): flash attention in two parts, merged by their
log-sum-exp. Every segment attends to itself, causally; and the episodes of a group attend to its
prompt, all of which lies before them. The softmax over both is the mean of the parts, weighted by
the sums of their exponentials. For the backward pass each part gets the merged output and
log-sum-exp, as in ring attention: the parts' gradients then add up to the gradient of the whole.

Importing this module imports torch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from importlib.util import find_spec
from inspect import signature
from typing import TYPE_CHECKING, Any

import torch
from transformers import AttentionInterface

from ludus.train.grpo.packed_groups import PackedGroups

if TYPE_CHECKING:
    from torch import Tensor, nn
    from transformers import PreTrainedModel

ROWS_ATTENTION, GROUPS_ATTENTION = "ludus_rows", "ludus_groups"
_SUPPORTED_LAYER_TYPES = frozenset({"full_attention", "sliding_attention"})


def supports_varlen(model: PreTrainedModel) -> bool:
    """Whether the kernel is available and equivalent to the model's own attention."""
    if find_spec("torch.nn.attention.varlen") is None:
        return False
    # Tokens must interact only through attention, and that must be a plain softmax over keys.
    config = model.config.get_text_config()
    drops = [getattr(config, name, 0.0) for name in ("attention_dropout", "attn_pdrop")]
    return (
        getattr(model, "_supports_attention_backend", False)
        and _SUPPORTED_LAYER_TYPES.issuperset(getattr(config, "layer_types", None) or ())
        and not any(drops)
        and getattr(config, "attn_logit_softcapping", None) is None
        and getattr(config, "v_head_dim", None) is None
        and not any(name.endswith("sinks") for name, _ in model.named_parameters())
    )


def varlen_kernel_works(model: PreTrainedModel, dtype: torch.dtype) -> bool:
    """Run the kernel forward and backward on a few tokens.

    PyTorch versions and GPUs differ in the head sizes that they support.
    """
    config = model.config.get_text_config()
    heads = config.num_attention_heads
    kv_heads = getattr(config, "num_key_value_heads", None) or heads
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // heads
    query, key, value = (
        torch.zeros(1, count, 4, head_dim, dtype=dtype, device=model.device, requires_grad=True)
        for count in (heads, kv_heads, kv_heads)
    )
    cu_seq_lens = torch.tensor([0, 2, 4], dtype=torch.int32, device=model.device)
    try:
        output, _ = varlen_attention_function()(
            None, query, key, value, None, cu_seq_lens_q=cu_seq_lens, max_length_q=2
        )
        output.sum().backward()
    except Exception:
        return False
    return True


def use_varlen_attention(model: PreTrainedModel) -> None:
    """Switch the model to this attention.

    No mask is registered for it, so transformers builds none: a mask of the whole sequence would
    take gigabytes.
    """
    AttentionInterface.register(ROWS_ATTENTION, varlen_attention_function())
    model.set_attn_implementation(ROWS_ATTENTION)


def varlen_attention_function() -> Callable[..., tuple[Tensor, None]]:
    """The attention for this version of PyTorch: newer ones need `enable_gqa`, older ones have it
    always on and no such parameter."""
    from torch.nn.attention.varlen import varlen_attn

    has_parameter = "enable_gqa" in signature(varlen_attn).parameters
    return partial(_varlen_attention, pass_enable_gqa=has_parameter)


def _varlen_attention(
    module: torch.nn.Module | None,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    cu_seq_lens_q: Tensor | None = None,
    max_length_q: int | None = None,
    sliding_window: int | None = None,
    pass_enable_gqa: bool = False,
    **more: Any,
) -> tuple[Tensor, None]:
    """Attention with transformers' signature: `query`, `key`, `value` are (1, heads, tokens, dim).

    Under autocast, rotary embeddings leave queries and keys in float32, which the kernel rejects.
    """
    from torch.nn.attention.varlen import varlen_attn

    gqa = {"enable_gqa": True} if pass_enable_gqa else {}
    # (tokens, heads, dim), as the kernel takes them.
    tensors = [each.squeeze(0).transpose(0, 1).to(value.dtype) for each in (query, key, value)]
    window = (-1, 0) if sliding_window is None else (sliding_window - 1, 0)
    output = varlen_attn(
        *tensors,
        cu_seq_lens_q,
        cu_seq_lens_q,
        max_length_q,
        max_length_q,
        scale=scaling,
        window_size=window,
        **gqa,
    )
    return output.unsqueeze(0), None


_current: PackedGroups | None = None
"""The sequence in the forward or backward pass. It is no argument of the call, because its tensors
would trigger a recompilation of the layers."""


@contextmanager
def group_attention(model: PreTrainedModel, packed: PackedGroups) -> Iterator[None]:
    """Let the model attend within packed groups, in forward and backward passes."""
    global _current
    AttentionInterface.register(GROUPS_ATTENTION, _UNCOMPILED_ATTENTION)
    before, _current = model.config._attn_implementation, packed
    model.set_attn_implementation(GROUPS_ATTENTION)
    try:
        yield
    finally:
        _current = None
        model.set_attn_implementation(before)


def _attention_of_groups(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: None,
    scaling: float | None = None, **_: object,
) -> tuple[Tensor, None]:  # fmt: skip
    """Attention with transformers' signature: tensors are (1, heads, tokens, dim)."""
    assert _current is not None
    # (tokens, heads, dim). Under autocast, rotary embeddings leave queries and keys in float32.
    parts = [each.squeeze(0).transpose(0, 1).to(value.dtype) for each in (query, key, value)]
    return _GroupAttention.apply(*parts, _current, scaling).unsqueeze(0), None


# One object for all calls: another one would trigger a recompilation of the layers.
_UNCOMPILED_ATTENTION = torch.compiler.disable(_attention_of_groups)


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
        if split := packed.prompt_tokens:
            other, other_lse, *rng = _flash_forward(
                query[split:], key[:split], value[:split], packed.members, packed.prompts,
                packed.longest_group, packed.longest_prompt, False, scale,
            )  # fmt: skip
            own, own_lse = output[split:], lse[:, split:]
            merged_lse = torch.logaddexp(own_lse, other_lse)
            # (heads, tokens) -> (tokens, heads, 1)
            weight = (own_lse - merged_lse).exp().T.unsqueeze(-1)
            output[split:] = torch.lerp(other.float(), own.float(), weight).to(output.dtype)
            lse[:, split:] = merged_lse
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
        if split := packed.prompt_tokens:
            others = torch.ops.aten._flash_attention_backward(
                gradient[split:], query[split:], key[:split], value[:split], output[split:],
                lse[:, split:].contiguous(), packed.members, packed.prompts,
                packed.longest_group, packed.longest_prompt, 0.0, False, *rng, scale=ctx.scale,
            )  # fmt: skip
            dq[split:] += others[0]
            dk[:split] += others[1]
            dv[:split] += others[2]
        return dq, dk, dv, None, None


def _flash_forward(
    query: Tensor, key: Tensor, value: Tensor, query_bounds: Tensor, key_bounds: Tensor,
    longest_query: int, longest_key: int, causal: bool, scale: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Output (tokens, heads, dim), log-sum-exp (heads, tokens), and RNG state for the backward."""
    output, lse, rng, unused, _ = torch.ops.aten._flash_attention_forward(
        query, key, value, query_bounds, key_bounds, longest_query, longest_key, 0.0, causal, False,
        scale=scale,
    )  # fmt: skip
    return output, lse, rng, unused
