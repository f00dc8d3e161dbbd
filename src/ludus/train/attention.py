"""Attention over many rows laid end to end, each of which sees only itself.

A batch without padding is one long sequence with the rows' boundaries beside it, as TRL's collator
and `ludus.train.strip` write them. torch has a kernel for that; here it is offered to transformers
under a name of its own. It is for training alone: nothing can be generated with it.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

NAME = "ludus_rows"
LARGEST_HEAD = 256


def can_attend(model: Any) -> bool:
    """Whether the kernel is there, and computes what the model's own attention does."""
    config = model.config.get_text_config()
    head = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return (
        find_spec("torch.nn.attention.varlen") is not None
        and getattr(model, "_supports_attention_backend", False)
        and head <= LARGEST_HEAD
        and not getattr(config, "attention_dropout", 0.0)
        and not getattr(config, "attn_logit_softcapping", None)
        and not any(name.endswith("sinks") for name, _ in model.named_parameters())
    )


def attend_by_rows(model: Any) -> None:
    """Let the model use it from now on.

    No mask goes with it: the boundaries say it all, and a mask of the whole sequence would be
    gigabytes. transformers makes none for a name for which none is registered.
    """
    from transformers import AttentionInterface

    AttentionInterface.register(NAME, _attend)
    model.set_attn_implementation(NAME)


def _attend(
    module: Any,
    query: Any,
    key: Any,
    value: Any,
    attention_mask: Any,
    scaling: float | None = None,
    dropout: float = 0.0,
    cu_seq_lens_q: Any = None,
    max_length_q: int | None = None,
    sliding_window: int | None = None,
    **more: Any,
) -> tuple[Any, None]:
    """Queries, keys and values are (1, heads, tokens, size).

    Under autocast, rotating leaves queries and keys in float32, which the kernel does not take.
    """
    from torch.nn.attention.varlen import varlen_attn

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
    )
    return made.unsqueeze(0), None
