"""Attention of rows that are concatenated without padding: each attends only to itself.

A batch is one long sequence with the boundaries of its rows (`cu_seq_lens`). PyTorch has a kernel
for that, `varlen_attn`; here it is registered with transformers. It is for training only: it has no
KV cache.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from inspect import signature
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch
    from torch import Tensor
    from transformers import PreTrainedModel

ATTENTION_NAME = "ludus_rows"
_SUPPORTED_LAYER_TYPES = frozenset({"full_attention", "sliding_attention"})


def supports_varlen(model: PreTrainedModel) -> bool:
    """Whether the kernel is available, and computes the same as the model's own attention."""
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
    import torch

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
    from transformers import AttentionInterface

    AttentionInterface.register(ATTENTION_NAME, varlen_attention_function())
    model.set_attn_implementation(ATTENTION_NAME)


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
