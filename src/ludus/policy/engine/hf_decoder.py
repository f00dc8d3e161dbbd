"""A model's own forward pass, token by token, with its cache: one batch from prompts to replies.

Prompts of one environment begin alike, with the same system prompt and the same tools: what all of
a batch share is read once. Who asks, and how requests become batches, is not its business.
"""

from __future__ import annotations

import inspect
import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any

from ludus.errors import ConfigError
from ludus.policy.engine.decode_stats import DecodeStats
from ludus.policy.engine.engine_api import (
    Completion,
    DeliverCompletion,
    IsWanted,
    PollRequests,
    Request,
    max_context_length,
    no_more_requests,
)
from ludus.policy.engine.sampling import TokenSampler

MIN_SHARED_PREFIX_TOKENS = 8
"""Tokens that prompts must have in common before they are read once for all."""


@dataclass(slots=True)
class SequenceState:
    """One request while it is being answered."""

    index: int
    request: Request
    remaining: int
    """Tokens that it may still have."""
    draw_uniform: Callable[[], float]
    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    active: bool = True

    def append(self, token: int, logprob: float) -> None:
        if not math.isfinite(logprob):
            raise ValueError("the model's logits are no numbers; load it in another dtype")
        self.ids.append(token)
        self.logprobs.append(logprob)
        self.remaining -= 1
        self.active = self.remaining > 0 and token not in self.request.stop_token_ids

    @property
    def position(self) -> int:
        """Of the last token."""
        return len(self.request.ids) + len(self.ids) - 1

    @property
    def completion(self) -> Completion:
        stopped = bool(self.ids) and self.ids[-1] in self.request.stop_token_ids
        return Completion(tuple(self.ids), tuple(self.logprobs), stopped)


class HFDecoder:
    """Answers batches of requests, one at a time, in whatever thread it is called."""

    suppressed_ids: frozenset[int] = frozenset()
    """Ids that are not sampled, however likely they are."""

    def __init__(self, model: Any, *, pad_id: int) -> None:
        self.model = model
        self.pad_id = pad_id
        self.stats = DecodeStats()
        self.max_context = max_context_length(model)
        # An adapter passes on what it does not name itself.
        base = model.get_base_model() if hasattr(model, "get_base_model") else model
        self._forward_parameters = inspect.signature(base.forward).parameters
        if "past_key_values" not in self._forward_parameters:
            raise ConfigError(
                f"{type(base).__name__} keeps what it has read in a way of its own, which Ludus "
                "does not know. Name a model with attention, such as a Llama or a Qwen."
            )

    def run(
        self,
        requests: Sequence[Request],
        deliver: DeliverCompletion,
        is_wanted: IsWanted = lambda at: True,
        poll_requests: PollRequests = no_more_requests,
    ) -> None:
        """Answer all of them, each as soon as it is done, but for those not wanted any more.

        Who comes meanwhile is left to the next batch: to join this one would be to read it anew.
        """
        import torch

        rows = []
        for at, request in enumerate(requests):
            left = request.max_new_tokens(self.max_context)
            row = SequenceState(at, request, left, random.Random(request.seed).random)
            rows.append(row) if left > 0 else deliver(at, row.completion)
        if rows:
            with torch.inference_mode():
                self._decode(self.build_batch(rows), deliver, is_wanted)

    def refresh(self) -> None:
        """It holds nothing that the weights could have made."""

    def build_batch(self, rows: list[SequenceState]) -> DecodeBatch:
        return DecodeBatch(self, rows)

    def _decode(self, batch: DecodeBatch, deliver: DeliverCompletion, wanted: IsWanted) -> None:
        self.stats.prefilled_tokens += sum(len(row.request.ids) for row in batch.rows)
        logits = batch.prefill()
        while True:
            batch.sample_tokens(logits, deliver)
            for row in batch.rows:
                row.active = row.active and wanted(row.index)
            live = [place for place, row in enumerate(batch.rows) if row.active]
            if not live:
                return
            # To select rows copies the whole cache, so it has to save at least as much.
            if 2 * len(live) <= len(batch.rows):
                batch.keep_rows(live)
            logits = batch.step()

    def build_cache(self) -> Any:
        from transformers import DynamicCache

        return DynamicCache(config=self.model.config)

    def can_share_prefix(self, cache: Any) -> bool:
        """Whether padding may stand between a common prefix and the rest of a prompt.

        Windows and recurrent states go by places and not by positions, and would see it.
        """
        from transformers.cache_utils import DynamicLayer

        plain = all(type(layer) is DynamicLayer for layer in cache.layers)
        return plain and "position_ids" in self._forward_parameters

    def forward(self, **inputs: Any) -> Any:
        """The logits that follow each row's last token."""
        given = {**inputs, "use_cache": True, "logits_to_keep": 1}
        taken = {name: value for name, value in given.items() if name in self._forward_parameters}
        return self.model(**taken).logits[:, -1]


class DecodeBatch:
    """Rows that are decoded together: a cache, and which of its places each row may see."""

    def __init__(self, decoder: HFDecoder, rows: list[SequenceState]) -> None:
        self._decoder = decoder
        self._device = decoder.model.device
        self._cache = decoder.build_cache()
        self._attention_mask: Any = None
        self._sampler: TokenSampler | None = None
        self.rows = rows

    def prefill(self) -> Any:
        """The logits after each prompt: what is common first, then the rest, padded on its left."""
        prompts = [row.request.ids for row in self.rows]
        shared = common_prefix_length(prompts) if self._decoder.can_share_prefix(self._cache) else 0
        if len(prompts) == 1 or shared < MIN_SHARED_PREFIX_TOKENS:
            shared = 0
        if shared:
            self._forward([prompts[0][:shared]], [list(range(shared))], [[1] * shared])
            self._cache.batch_repeat_interleave(len(prompts))
            self._decoder.stats.prefilled_tokens -= (len(prompts) - 1) * shared
            self._decoder.stats.reused_tokens += (len(prompts) - 1) * shared
        width = max(map(len, prompts)) - shared
        gaps = [shared + width - len(prompt) for prompt in prompts]
        pad = self._decoder.pad_id
        return self._forward(
            [[pad] * gap + list(ids[shared:]) for gap, ids in zip(gaps, prompts, strict=True)],
            [[0] * gap + list(range(shared, shared + width - gap)) for gap in gaps],
            [[1] * shared + [0] * gap + [1] * (width - gap) for gap in gaps],
        )

    def step(self) -> Any:
        """The logits after the token that each row took last; those of ended rows mean nothing."""
        import torch

        seen = torch.cat(
            [self._attention_mask, self._attention_mask.new_ones(len(self.rows), 1)], dim=1
        )
        return self._forward([[row.ids[-1]] for row in self.rows], self._next_positions(), seen)

    def _next_positions(self) -> Any:
        return [[row.position] for row in self.rows]

    def _forward(self, ids: list[Any], positions: Any, attention_mask: Any, **more: Any) -> Any:
        import torch

        self._attention_mask = torch.as_tensor(attention_mask, device=self._device)
        return self._decoder.forward(
            input_ids=torch.tensor(ids, device=self._device),
            position_ids=torch.as_tensor(positions, device=self._device),
            attention_mask=self._attention_mask,
            past_key_values=self._cache,
            **more,
        )

    def sample_tokens(self, logits: Any, deliver: DeliverCompletion) -> None:
        """Choose a token for every row that goes on, and hand over those that it ends."""
        if self._sampler is None:
            settings = [row.request.sampling for row in self.rows]
            size = logits.shape[-1]
            never = self._decoder.suppressed_ids
            self._sampler = TokenSampler(
                settings, vocab_size=size, device=logits.device, suppressed_ids=never
            )
        uniforms = [row.draw_uniform() if row.active else 0.0 for row in self.rows]
        chosen = self._sampler.sample(logits, uniforms)
        for row, token, logprob in zip(self.rows, *chosen, strict=True):
            if row.active:
                row.append(token, logprob)
                # Token by token, so that a display sees how fast it goes.
                self._decoder.stats.sampled_tokens += 1
                if not row.active:
                    deliver(row.index, row.completion)

    def keep_rows(self, indices: list[int]) -> None:
        """Go on with these rows alone."""
        import torch

        kept = torch.tensor(indices, device=self._device)
        # Not batch_select_indices, which the layers of hybrid models do not have.
        self._cache.reorder_cache(kept)
        self._attention_mask = self._attention_mask[kept]
        self._sampler = None
        self.rows = [self.rows[place] for place in indices]


def common_prefix_length(prompts: Sequence[tuple[int, ...]]) -> int:
    """How many tokens all prompts begin with, but for the last of each, which has to be read."""
    # What the first and the last in order have in common, all between them have too.
    ends = zip(min(prompts), max(prompts), strict=False)
    alike = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], ends))
    return min(alike, *(len(prompt) - 1 for prompt in prompts))
