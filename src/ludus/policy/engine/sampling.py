"""Sample the next token of every row of a batch from logits.

Each row has its own parameters and its own random number, so that its result does not depend on
the other rows of the batch.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ludus.errors import ConfigError

if TYPE_CHECKING:
    import torch
    from torch import Tensor

_SMALLEST_FLOAT32 = 2.0**-126
"""Smaller numbers may be 0 in the tensors of a batch."""


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """Temperature, top-p and top-k, as in vLLM."""

    temperature: float = 1.0
    """0 for greedy decoding, which is also what numbers become that float32 cannot hold."""
    top_p: float = 1.0
    """Nucleus sampling: keep the most likely tokens whose probabilities sum up to this."""
    top_k: int | None = None
    """Keep only this many of the most likely tokens."""

    def __post_init__(self) -> None:
        if not math.isfinite(self.temperature) or self.temperature < 0:
            raise ConfigError(f"`temperature` must be 0 or more, got {self.temperature}.")
        if not 0 < self.top_p <= 1:
            raise ConfigError(f"`top_p` must be greater than 0 and at most 1, got {self.top_p}.")
        if self.top_k is not None and self.top_k < 1:
            raise ConfigError(f"`top_k` must be 1 or more, got {self.top_k}.")
        if self.temperature < _SMALLEST_FLOAT32:
            object.__setattr__(self, "temperature", 0.0)
        object.__setattr__(self, "top_p", max(self.top_p, _SMALLEST_FLOAT32))


class TokenSampler:
    """Samples a batch whose rows have these parameters; `suppressed_ids` are never sampled."""

    def __init__(
        self,
        rows: Sequence[SamplingParams],
        *,
        device: torch.device | str,
        suppressed_ids: Collection[int] = (),
    ) -> None:
        import torch

        self._temperature = torch.tensor([row.temperature for row in rows], device=device)
        self._top_p = torch.tensor([row.top_p for row in rows], device=device)
        self._top_k = torch.tensor([row.top_k or 0 for row in rows], device=device)
        self._suppressed_ids = torch.tensor(sorted(suppressed_ids), dtype=torch.long, device=device)
        self._all_greedy = all(row.temperature == 0 for row in rows)
        self._any_filtered = any(row.top_p < 1 or row.top_k is not None for row in rows)

    def sample(self, logits: Tensor, uniforms: Sequence[float]) -> tuple[list[int], list[float]]:
        """Return ids and their log-probabilities under the temperature, before top-k and top-p."""
        import torch

        logits = logits.float()
        greedy = self._temperature == 0
        # Subtracting the maximum avoids overflow at tiny temperatures.
        scaled = logits - logits.amax(-1, keepdim=True)
        scaled = scaled / self._temperature.masked_fill(greedy, 1.0).unsqueeze(1)
        logprobs = torch.log_softmax(scaled, dim=-1)
        allowed = logits
        if len(self._suppressed_ids):
            allowed = logits.index_fill(-1, self._suppressed_ids, -math.inf)
        ids = allowed.argmax(-1)
        if not self._all_greedy:
            if self._any_filtered:
                least = min_kept_logit(allowed, self._temperature, self._top_p, self._top_k)
                allowed = allowed.masked_fill(allowed < least.unsqueeze(1), -math.inf)
            # Inverse transform: find each row's uniform number in its cumulative sum. float32 sums
            # over a large vocabulary are inexact, but MPS has no float64.
            dtype = torch.float32 if logits.device.type == "mps" else torch.float64
            masked = logprobs.masked_fill(allowed.isneginf(), -math.inf)
            cumulative = masked.to(dtype).exp().cumsum(-1)
            total = cumulative[:, -1:].contiguous()
            targets = torch.tensor(uniforms, dtype=dtype, device=logits.device).unsqueeze(1) * total
            drawn = torch.searchsorted(cumulative, targets, right=True)
            # Rounding must not lead past the last token with a positive probability.
            drawn = torch.minimum(drawn, torch.searchsorted(cumulative, total)).squeeze(1)
            ids = torch.where(greedy, ids, drawn.clamp(max=logits.shape[-1] - 1))
        sampled_logprobs = logprobs.gather(-1, ids.unsqueeze(1)).squeeze(1)
        return ids.tolist(), sampled_logprobs.tolist()


def min_kept_logit(logits: Tensor, temperature: Tensor, top_p: Tensor, top_k: Tensor) -> Tensor:
    """The smallest logit of each row, [rows], that sampling keeps; ties are all kept.

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
