"""The least likely token that top_k and top_p leave to be drawn, for each row of a batch."""

from __future__ import annotations

from typing import Any


def min_kept_logit(logits: Any, temperature: Any, top_p: Any, top_k: Any) -> Any:
    """The smallest logit of those kept; of tokens that are as likely as it, all are.

    A top_k of 0 and a top_p of 1 keep all. First top_k cuts, then top_p what is left.
    """
    import torch

    ordered = logits.sort(dim=-1, descending=True).values
    ranks = torch.arange(logits.shape[-1], device=logits.device)
    limit = torch.where(top_k > 0, top_k, logits.shape[-1]).unsqueeze(1)
    heat = temperature.masked_fill(temperature == 0, 1.0).unsqueeze(1)
    likely = ((ordered - ordered[:, :1]) / heat).exp() * (ranks < limit)
    before = likely.cumsum(-1) - likely
    enough = top_p.unsqueeze(1) * likely.sum(-1, keepdim=True)
    kept = (ranks < limit) & ((before < enough) | (top_p.unsqueeze(1) >= 1))
    # Kept are those that come first, so their number is the place after the last of them.
    last = kept.sum(-1, keepdim=True).clamp(min=1) - 1
    return ordered.gather(-1, last).squeeze(1)
