"""Decode batches with the forward pass and the KV cache of a transformers model.

Prompts of one environment begin alike, with the same system prompt and tools: the common prefix of
a batch is prefilled once, and on a CPU also stored once (`shared_prefix`).
"""

from __future__ import annotations

import inspect
import random
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import takewhile
from typing import TYPE_CHECKING, TypeAlias

from ludus.errors import ConfigError
from ludus.policy.engine.engine_api import (
    DecodeStats,
    DeliverCompletion,
    IsWanted,
    PollRequests,
    Request,
    SampledSequence,
    no_more_requests,
)
from ludus.policy.engine.sampling import TokenSampler
from ludus.policy.engine.shared_prefix import SharedPrefix, supports_shared_prefix

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import DynamicCache, PreTrainedModel

    Positions: TypeAlias = "Tensor | list[list[int]]"

MIN_SHARED_PREFIX_TOKENS = 8
"""Shorter common prefixes are not worth a separate forward pass."""


def max_context_length(model: PreTrainedModel) -> int | None:
    """The maximum length of prompt and reply together, if the model's config states it."""
    config = model.config.get_text_config(decoder=True)
    length = getattr(config, "max_position_embeddings", None)
    return length if isinstance(length, int) and length > 0 else None


@dataclass(slots=True, kw_only=True)
class HFSequence(SampledSequence):
    """One request while the HF decoder samples its completion."""

    draw_uniform: Callable[[], float]
    """The request's own random numbers."""
    active: bool = True


class HFDecoder:
    """An engine that decodes one batch after the other, in the calling thread."""

    suppressed_ids: frozenset[int] = frozenset()
    """Ids that are never sampled."""

    def __init__(self, model: PreTrainedModel, *, pad_id: int) -> None:
        self.model = model
        self.pad_id = pad_id
        self.stats = DecodeStats()
        self.max_context = max_context_length(model)
        # `forward` of a PEFT model takes **kwargs; `forward` of its base model names them.
        base = model.get_base_model() if hasattr(model, "get_base_model") else model
        self._forward_parameters = inspect.signature(base.forward).parameters
        self.takes_positions = "position_ids" in self._forward_parameters
        if "past_key_values" not in self._forward_parameters:
            raise ConfigError(
                f"{type(base).__name__} takes no past_key_values, so Ludus cannot decode with it. "
                "Name a model with attention, such as a Llama or a Qwen."
            )

    def run(
        self,
        requests: Sequence[Request],
        deliver: DeliverCompletion,
        is_wanted: IsWanted = lambda index: True,
        poll_requests: PollRequests = no_more_requests,
    ) -> None:
        """Complete the requests, each as soon as it is done, except those not wanted any more.

        `poll_requests` is ignored: adding rows to a running batch would mean a new prefill of all.
        """
        import torch

        rows = []
        for index, request in enumerate(requests):
            budget = request.max_new_tokens(self.max_context)
            draw_uniform = random.Random(request.seed).random
            row = HFSequence(index, request, budget, draw_uniform=draw_uniform)
            rows.append(row) if budget > 0 else deliver(index, row.completion)
        if not rows:
            return
        with torch.inference_mode():
            batch = self.build_batch(rows)
            self.stats.prefilled_tokens += sum(len(row.request.ids) for row in rows)
            logits = batch.prefill()
            while True:
                batch.sample_tokens(logits, deliver)
                for row in batch.rows:
                    row.active = row.active and is_wanted(row.index)
                active = [index for index, row in enumerate(batch.rows) if row.active]
                if not active:
                    return
                # Removing rows copies the whole cache, which pays off once enough have ended.
                if 4 * len(active) <= 3 * len(batch.rows):
                    batch.keep_rows(active)
                logits = batch.step()

    def refresh(self) -> None:
        """Nothing to do: the weights are the model's own, and no cache outlives a batch."""

    def free_cache(self, *, larger_than: int = 0) -> None:
        """Nothing to do: no cache outlives a batch."""

    def build_batch(self, rows: list[HFSequence]) -> HFDecodeBatch:
        return HFDecodeBatch(self, rows)

    def build_cache(self) -> DynamicCache:
        from transformers import DynamicCache

        return DynamicCache(config=self.model.config)

    def forward(self, **inputs: object) -> Tensor:
        """Return the logits after each row's last token, [batch, vocabulary]."""
        inputs |= {"use_cache": True, "logits_to_keep": 1}
        known = {name: value for name, value in inputs.items() if name in self._forward_parameters}
        return self.model(**known).logits[:, -1]


class HFDecodeBatch:
    """Sequences that are decoded together, with their KV cache and attention mask."""

    def __init__(self, decoder: HFDecoder, rows: list[HFSequence]) -> None:
        self._decoder = decoder
        self._device = decoder.model.device
        self._cache = decoder.build_cache()
        self._prefix: SharedPrefix | None = None
        """The prefix shared by all rows, if it is not in their cache."""
        self._attention_mask: Tensor = None
        self._sampler: TokenSampler | None = None
        self.rows = rows

    def prefill(self) -> Tensor:
        """Return the logits after each prompt.

        The common prefix is computed once; the rest of each prompt is padded on the left.
        """
        from transformers.cache_utils import DynamicLayer

        prompts = [row.request.ids for row in self.rows]
        shared = shared_prompt_length(prompts) if self._decoder.takes_positions else 0
        # Sliding windows and recurrent states count cache slots instead of positions: the padding
        # between a common prefix and the rest of a prompt would shift them.
        full_attention = all(type(layer) is DynamicLayer for layer in self._cache.layers)
        if not full_attention or len(prompts) == 1 or shared < MIN_SHARED_PREFIX_TOKENS:
            shared = 0
        if shared:
            self._forward([list(prompts[0][:shared])], [list(range(shared))], [[1] * shared])
            if supports_shared_prefix(self._decoder.model):
                self._prefix = SharedPrefix(self._decoder.model, self._cache)
                self._cache = self._decoder.build_cache()
            else:
                self._cache.batch_repeat_interleave(len(prompts))
            self._decoder.stats.prefilled_tokens -= (len(prompts) - 1) * shared
            self._decoder.stats.reused_tokens += (len(prompts) - 1) * shared
        width = max(map(len, prompts)) - shared
        pads = [shared + width - len(prompt) for prompt in prompts]
        pad_id = self._decoder.pad_id
        cached = 0 if self._prefix is not None else shared
        return self._forward(
            [[pad_id] * pad + list(ids[shared:]) for pad, ids in zip(pads, prompts, strict=True)],
            [[0] * pad + list(range(shared, shared + width - pad)) for pad in pads],
            [[1] * cached + [0] * pad + [1] * (width - pad) for pad in pads],
        )

    def step(self) -> Tensor:
        """Return the logits after each row's newest token; for ended rows they are meaningless."""
        import torch

        mask = self._attention_mask
        mask = torch.cat([mask, mask.new_ones(len(self.rows), 1)], dim=1)
        return self._forward([[row.ids[-1]] for row in self.rows], self._next_positions(), mask)

    def _next_positions(self) -> Positions:
        return [[row.length - 1] for row in self.rows]

    def _forward(
        self, ids: list[list[int]], positions: Positions, attention_mask: Positions, **more: Tensor
    ) -> Tensor:
        import torch

        self._attention_mask = torch.as_tensor(attention_mask, device=self._device)
        with nullcontext() if self._prefix is None else self._prefix.attend():
            return self._decoder.forward(
                input_ids=torch.tensor(ids, device=self._device),
                position_ids=torch.as_tensor(positions, device=self._device),
                attention_mask=self._attention_mask,
                past_key_values=self._cache,
                **more,
            )

    def sample_tokens(self, logits: Tensor, deliver: DeliverCompletion) -> None:
        """Sample a token for every active row, and deliver the completions that it ends."""
        if self._sampler is None:
            self._sampler = TokenSampler(
                [row.request.sampling for row in self.rows],
                device=logits.device,
                suppressed_ids=self._decoder.suppressed_ids,
            )
        uniforms = [row.draw_uniform() if row.active else 0.0 for row in self.rows]
        sampled = self._sampler.sample(logits, uniforms)
        for row, token, logprob in zip(self.rows, *sampled, strict=True):
            if row.active:
                row.append((token,), (logprob,))
                row.report_tokens()
                row.active = not row.is_finished
                # One by one, so that a progress display sees the current speed.
                self._decoder.stats.sampled_tokens += 1
                if not row.active:
                    deliver(row.index, row.completion)

    def keep_rows(self, indices: list[int]) -> None:
        """Remove all other rows from the batch."""
        import torch

        index_tensor = torch.tensor(indices, device=self._device)
        # Not batch_select_indices, which the cache layers of hybrid models do not have.
        self._cache.reorder_cache(index_tensor)
        self._attention_mask = self._attention_mask[index_tensor]
        self._sampler = None
        self.rows = [self.rows[index] for index in indices]


def shared_prompt_length(prompts: Sequence[tuple[int, ...]]) -> int:
    """The number of tokens that all prompts of a batch begin with.

    The last token of a prompt does not count: its forward pass gives the first logits.
    """
    # The smallest and the largest prompt share only what all prompts between them share.
    pairs = zip(min(prompts), max(prompts), strict=False)
    shared = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
    return min(shared, *(len(prompt) - 1 for prompt in prompts))
