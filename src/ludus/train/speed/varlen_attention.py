"""Attention over many rows laid end to end, each of which sees only itself.

A batch without padding is one long sequence with the rows' boundaries beside it, as TRL's collator
and `ludus.train.speed.packing` write them. torch has a kernel for that; here it is offered to transformers
under a name of its own. It is for training alone: nothing can be generated with it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from inspect import signature
from typing import Any

ATTENTION_NAME = "ludus_rows"
_SUPPORTED_LAYER_TYPES = frozenset({"full_attention", "sliding_attention"})


def supports_varlen(model: Any) -> bool:
    """Whether the kernel is there, and computes what the model's own attention does."""
    return _has_plain_attention(model) and find_spec("torch.nn.attention.varlen") is not None


def _has_plain_attention(model: Any) -> bool:
    """Whether rows that stand together can only see each other through attention, and attention is
    nothing but a softmax over keys."""
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


def kernel_works(model: Any, dtype: Any) -> bool:
    """Try the kernel on a few tokens, there and back: torch's versions and GPUs differ in what
    heads they take."""
    import torch

    config = model.config.get_text_config()
    heads = config.num_attention_heads
    keys = getattr(config, "num_key_value_heads", None) or heads
    size = getattr(config, "head_dim", None) or config.hidden_size // heads

    def side(count: int) -> Any:
        made = torch.zeros(1, count, 4, size, dtype=dtype, device=model.device)
        return made.requires_grad_()

    bounds = torch.tensor([0, 2, 4], dtype=torch.int32, device=model.device)
    try:
        made, _ = varlen_attention_function()(
            None, side(heads), side(keys), side(keys), None, cu_seq_lens_q=bounds, max_length_q=2
        )
        made.sum().backward()
    except Exception:
        return False
    return True


def use_varlen_attention(model: Any) -> None:
    """Let the model use it from now on.

    No mask goes with it: the boundaries say it all, and a mask of the whole sequence would be
    gigabytes. transformers makes none for a name for which none is registered.
    """
    from transformers import AttentionInterface

    AttentionInterface.register(ATTENTION_NAME, varlen_attention_function())
    model.set_attn_implementation(ATTENTION_NAME)


def varlen_attention_function() -> Callable[..., Any]:
    """As this version of torch wants it: newer ones are told that heads share keys, older ones
    have no word for it and just do it."""
    from torch.nn.attention.varlen import varlen_attn

    tells = "enable_gqa" in signature(varlen_attn).parameters
    return partial(_varlen_attention, pass_enable_gqa=tells)


def _varlen_attention(
    module: Any,
    query: Any,
    key: Any,
    value: Any,
    attention_mask: Any,
    scaling: float | None = None,
    cu_seq_lens_q: Any = None,
    max_length_q: int | None = None,
    sliding_window: int | None = None,
    pass_enable_gqa: bool = False,
    **more: Any,
) -> tuple[Any, None]:
    """Queries, keys and values are (1, heads, tokens, size).

    Under autocast, rotating leaves queries and keys in float32, which the kernel does not take.
    """
    from torch.nn.attention.varlen import varlen_attn

    groups = {"enable_gqa": True} if pass_enable_gqa else {}
    rows = [side.squeeze(0).transpose(0, 1).to(value.dtype) for side in (query, key, value)]
    window = (-1, 0) if sliding_window is None else (sliding_window - 1, 0)
    made = varlen_attn(
        *rows,
        cu_seq_lens_q,
        cu_seq_lens_q,
        max_length_q,
        max_length_q,
        scale=scaling,
        window_size=window,
        **groups,
    )
    return made.unsqueeze(0), None
