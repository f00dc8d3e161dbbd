"""top_k and top_p as a threshold: the smallest logit that may still be sampled, per row."""

from __future__ import annotations

from typing import Any


def min_kept_logit(logits: Any, temperature: Any, top_p: Any, top_k: Any) -> Any:
    """The smallest kept logit [rows], for logits [rows, vocab_size]; ties with it are all kept.

    top_k = 0 and top_p = 1 keep everything. top_k is applied first, top_p to what is left.
    """
    import torch

    ordered = logits.sort(dim=-1, descending=True).values
    ranks = torch.arange(logits.shape[-1], device=logits.device)
    limit = torch.where(top_k > 0, top_k, logits.shape[-1]).unsqueeze(1)
    divisor = temperature.masked_fill(temperature == 0, 1.0).unsqueeze(1)
    weights = ((ordered - ordered[:, :1]) / divisor).exp() * (ranks < limit)
    mass_before = weights.cumsum(-1) - weights
    required_mass = top_p.unsqueeze(1) * weights.sum(-1, keepdim=True)
    is_kept = (ranks < limit) & ((mass_before < required_mass) | (top_p.unsqueeze(1) >= 1))
    # Tokens are sorted, so those kept come first, and their number is the rank after the last.
    last = is_kept.sum(-1, keepdim=True).clamp(min=1) - 1
    return ordered.gather(-1, last).squeeze(1)
