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
from ludus.policy.requests import Deliver, More, Request, Sampled, Wanted, context_of, nobody
from ludus.policy.sampling import Chooser
from ludus.policy.tally import Tally

WORTH_SHARING = 8
"""Tokens that prompts must have in common before they are read once for all."""


@dataclass(slots=True)
class Row:
    """One request while it is being answered."""

    index: int
    request: Request
    remaining: int
    """Tokens that it may still have."""
    uniform: Callable[[], float]
    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    live: bool = True

    def append(self, token: int, logprob: float) -> None:
        if not math.isfinite(logprob):
            raise ValueError("the model's logits are no numbers; load it in another dtype")
        self.ids.append(token)
        self.logprobs.append(logprob)
        self.remaining -= 1
        self.live = self.remaining > 0 and token not in self.request.stops

    @property
    def position(self) -> int:
        """Of the last token."""
        return len(self.request.ids) + len(self.ids) - 1

    @property
    def sampled(self) -> Sampled:
        stopped = bool(self.ids) and self.ids[-1] in self.request.stops
        return Sampled(tuple(self.ids), tuple(self.logprobs), stopped)


class Decoder:
    """Answers batches of requests, one at a time, in whatever thread it is called."""

    never: frozenset[int] = frozenset()
    """Ids that are not sampled, however likely they are."""

    def __init__(self, model: Any, *, pad_id: int) -> None:
        self.model = model
        self.pad_id = pad_id
        self.stats = Tally()
        self.context = context_of(model)
        # An adapter passes on what it does not name itself.
        base = model.get_base_model() if hasattr(model, "get_base_model") else model
        self._known = inspect.signature(base.forward).parameters
        if "past_key_values" not in self._known:
            raise ConfigError(
                f"{type(base).__name__} keeps what it has read in a way of its own, which Ludus "
                "does not know. Name a model with attention, such as a Llama or a Qwen."
            )

    def run(
        self,
        requests: Sequence[Request],
        deliver: Deliver,
        wanted: Wanted = lambda at: True,
        more: More = nobody,
    ) -> None:
        """Answer all of them, each as soon as it is done, but for those not wanted any more.

        Who comes meanwhile is left to the next batch: to join this one would be to read it anew.
        """
        import torch

        rows = []
        for at, request in enumerate(requests):
            left = request.budget(self.context)
            row = Row(at, request, left, random.Random(request.seed).random)
            rows.append(row) if left > 0 else deliver(at, row.sampled)
        if rows:
            with torch.inference_mode():
                self._answer(self.batch(rows), deliver, wanted)

    def refresh(self) -> None:
        """It holds nothing that the weights could have made."""

    def batch(self, rows: list[Row]) -> Batch:
        return Batch(self, rows)

    def _answer(self, batch: Batch, deliver: Deliver, wanted: Wanted) -> None:
        self.stats.read += sum(len(row.request.ids) for row in batch.rows)
        logits = batch.read_prompts()
        while True:
            batch.take(logits, deliver)
            for row in batch.rows:
                row.live = row.live and wanted(row.index)
            live = [place for place, row in enumerate(batch.rows) if row.live]
            if not live:
                return
            # To select rows copies the whole cache, so it has to save at least as much.
            if 2 * len(live) <= len(batch.rows):
                batch.select(live)
            logits = batch.step()

    def cache(self) -> Any:
        from transformers import DynamicCache

        return DynamicCache(config=self.model.config)

    def shares(self, cache: Any) -> bool:
        """Whether padding may stand between a common prefix and the rest of a prompt.

        Windows and recurrent states go by places and not by positions, and would see it.
        """
        from transformers.cache_utils import DynamicLayer

        plain = all(type(layer) is DynamicLayer for layer in cache.layers)
        return plain and "position_ids" in self._known

    def forward(self, **inputs: Any) -> Any:
        """The logits that follow each row's last token."""
        given = {**inputs, "use_cache": True, "logits_to_keep": 1}
        taken = {name: value for name, value in given.items() if name in self._known}
        return self.model(**taken).logits[:, -1]


class Batch:
    """Rows that are decoded together: a cache, and which of its places each row may see."""

    def __init__(self, decoder: Decoder, rows: list[Row]) -> None:
        self._decoder = decoder
        self._device = decoder.model.device
        self._cache = decoder.cache()
        self._mask: Any = None
        self._chooser: Chooser | None = None
        self.rows = rows

    def read_prompts(self) -> Any:
        """The logits after each prompt: what is common first, then the rest, padded on its left."""
        prompts = [row.request.ids for row in self.rows]
        shared = common(prompts) if self._decoder.shares(self._cache) else 0
        if len(prompts) == 1 or shared < WORTH_SHARING:
            shared = 0
        if shared:
            self._forward([prompts[0][:shared]], [list(range(shared))], [[1] * shared])
            self._cache.batch_repeat_interleave(len(prompts))
            self._decoder.stats.read -= (len(prompts) - 1) * shared
            self._decoder.stats.reused += (len(prompts) - 1) * shared
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

        seen = torch.cat([self._mask, self._mask.new_ones(len(self.rows), 1)], dim=1)
        return self._forward([[row.ids[-1]] for row in self.rows], self._positions(), seen)

    def _positions(self) -> Any:
        return [[row.position] for row in self.rows]

    def _forward(self, ids: list[Any], positions: Any, seen: Any, **more: Any) -> Any:
        import torch

        self._mask = torch.as_tensor(seen, device=self._device)
        return self._decoder.forward(
            input_ids=torch.tensor(ids, device=self._device),
            position_ids=torch.as_tensor(positions, device=self._device),
            attention_mask=self._mask,
            past_key_values=self._cache,
            **more,
        )

    def take(self, logits: Any, deliver: Deliver) -> None:
        """Choose a token for every row that goes on, and hand over those that it ends."""
        if self._chooser is None:
            settings = [row.request.sampling for row in self.rows]
            size = logits.shape[-1]
            never = self._decoder.never
            self._chooser = Chooser(settings, vocab_size=size, device=logits.device, never=never)
        uniforms = [row.uniform() if row.live else 0.0 for row in self.rows]
        chosen = self._chooser.choose(logits, uniforms)
        for row, token, logprob in zip(self.rows, *chosen, strict=True):
            if row.live:
                row.append(token, logprob)
                # Token by token, so that a display sees how fast it goes.
                self._decoder.stats.sampled += 1
                if not row.live:
                    deliver(row.index, row.sampled)

    def select(self, places: list[int]) -> None:
        """Go on with these rows alone."""
        import torch

        kept = torch.tensor(places, device=self._device)
        # Not batch_select_indices, which the layers of hybrid models do not have.
        self._cache.reorder_cache(kept)
        self._mask = self._mask[kept]
        self._chooser = None
        self.rows = [self.rows[place] for place in places]


def common(prompts: Sequence[tuple[int, ...]]) -> int:
    """How many tokens all prompts begin with, but for the last of each, which has to be read."""
    # What the first and the last in order have in common, all between them have too.
    ends = zip(min(prompts), max(prompts), strict=False)
    alike = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], ends))
    return min(alike, *(len(prompt) - 1 for prompt in prompts))
