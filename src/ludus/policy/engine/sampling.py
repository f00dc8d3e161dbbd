"""Choosing the next token of every row of a batch from the model's logits.

A row is chosen by its own settings and its own random number, so that what it becomes does not
depend on who else is in the batch. Where logits come from is the decoder's business.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from ludus.errors import ConfigError


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How tokens are chosen."""

    temperature: float = 1.0
    """0: always the likeliest."""
    top_p: float = 1.0
    """Only the likeliest tokens that have this much probability together."""
    top_k: int | None = None
    """Only so many of the likeliest tokens."""

    def __post_init__(self) -> None:
        if not math.isfinite(self.temperature) or self.temperature < 0:
            raise ConfigError(f"A temperature of {self.temperature} cannot be; give 0 or more.")
        if not 0 < self.top_p <= 1:
            raise ConfigError(f"A top_p of {self.top_p} cannot be; give more than 0, at most 1.")
        if self.top_k is not None and self.top_k < 1:
            raise ConfigError(f"A top_k of {self.top_k} cannot be; give 1 or more.")


class TokenSampler:
    """The settings of a batch, as tensors; `never` are ids that no row may get."""

    def __init__(
        self,
        rows: Sequence[SamplingParams],
        *,
        vocab_size: int,
        device: Any,
        suppressed_ids: Collection[int] = (),
    ) -> None:
        import torch

        def column(values: list[float]) -> Any:
            return torch.tensor(values, device=device).unsqueeze(1)

        self._temperature = column([row.temperature or 1.0 for row in rows])
        self._greedy = torch.tensor([row.temperature == 0 for row in rows], device=device)
        self._top_p = column([row.top_p for row in rows])
        self._top_k = column([row.top_k or vocab_size for row in rows])
        self._suppressed_ids = torch.tensor(sorted(suppressed_ids), dtype=torch.long, device=device)
        self._all_greedy = all(row.temperature == 0 for row in rows)
        self._any_filtered = any(row.top_p < 1 or row.top_k is not None for row in rows)

    def sample(self, logits: Any, uniforms: Sequence[float]) -> tuple[list[int], list[float]]:
        """Ids, and their log-probabilities under the temperature, before any tokens are cut off."""
        import torch

        logits = logits.float()
        # Against the largest, because a tiny temperature would make infinities of the logits.
        scaled = (logits - logits.amax(-1, keepdim=True)) / self._temperature
        logprobs = torch.log_softmax(scaled, dim=-1)
        ids = self._mask_suppressed(logits).argmax(-1)
        if not self._all_greedy:
            drawn = self._draw(self._mask_suppressed(logprobs), uniforms)
            ids = torch.where(self._greedy, ids, drawn)
        chosen = logprobs.gather(-1, ids.unsqueeze(1)).squeeze(1)
        return ids.tolist(), chosen.tolist()

    def _mask_suppressed(self, logits: Any) -> Any:
        return (
            logits.index_fill(-1, self._suppressed_ids, -math.inf)
            if len(self._suppressed_ids)
            else logits
        )

    def _draw(self, logprobs: Any, uniforms: Sequence[float]) -> Any:
        """Where each row's random number falls among its tokens, laid end to end."""
        import torch

        # A vocabulary of a hundred thousand adds up to an error in single precision, which is all
        # that Apple's chips have.
        exact = torch.float32 if logprobs.device.type == "mps" else torch.float64
        probabilities = logprobs.to(exact).exp()
        if self._any_filtered:
            probabilities = self._filter_top_k_top_p(probabilities)
        reached = probabilities.cumsum(-1)
        total = reached[:, -1:].contiguous()
        at = torch.tensor(uniforms, dtype=exact, device=logprobs.device).unsqueeze(1) * total
        drawn = torch.searchsorted(reached, at, right=True)
        # Rounding must not lead past the last token that can be.
        last = torch.searchsorted(reached, total)
        return torch.minimum(drawn, last).squeeze(1).clamp(max=logprobs.shape[-1] - 1)

    def _filter_top_k_top_p(self, probabilities: Any) -> Any:
        """Without the tokens that top_k and then top_p leave out."""
        import torch

        ordered, places = probabilities.sort(dim=-1, descending=True, stable=True)
        ranks = torch.arange(ordered.shape[-1], device=ordered.device)
        ordered = ordered * (ranks < self._top_k)
        before = ordered.cumsum(-1) - ordered
        enough = self._top_p * ordered.sum(-1, keepdim=True)
        kept = ordered * ((before < enough) | (self._top_p >= 1))
        return torch.zeros_like(kept).scatter(-1, places, kept)
