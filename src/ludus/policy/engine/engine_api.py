"""The interface between the batcher and its engines: requests, completions and `Engine`."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from ludus.errors import RequestRefused
from ludus.policy.engine.sampling import SamplingParams

if TYPE_CHECKING:
    from ludus.policy.vision.processor import ProcessedImage


def check_prompt_fits(prompt: Sequence[int], context: int | None) -> None:
    """Raise for a prompt that leaves no room for a single sampled token."""
    if context is not None and len(prompt) >= context:
        raise RequestRefused(
            f"The prompt has {len(prompt):,} tokens, but the model's context is {context:,}: no "
            "room is left for a reply. Use tasks with shorter prompts, or a model with a longer "
            "context."
        )


@dataclass(slots=True)
class DecodeStats:
    """Counters that only grow; the difference of two copies covers the time between them."""

    sampled_tokens: int = 0
    prefilled_tokens: int = 0
    """Prompt tokens that went through the model."""
    reused_tokens: int = 0
    """Prompt tokens that were skipped, because their keys and values were cached or shared."""
    busy_s: float = 0.0
    """Seconds in which at least one request was being processed."""


OnTokens = Callable[[int, Sequence[int], Sequence[float]], None]
"""Takes the number of tokens sampled before, the new ids and their log-probabilities."""


@dataclass(frozen=True, slots=True)
class Request:
    """A prompt, and how to sample its completion."""

    ids: tuple[int, ...]
    max_tokens: int
    stop_token_ids: Collection[int]
    sampling: SamplingParams
    seed: int
    images: tuple[ProcessedImage, ...] = ()
    """The images of the placeholders among the ids, in their order."""
    on_tokens: OnTokens | None = None
    """Called in the engine's thread with the tokens of the completion, as they are sampled."""

    def max_new_tokens(self, context: int | None) -> int:
        """The token budget of the completion, given the model's context length."""
        if not self.ids:
            return 0
        room = self.max_tokens if context is None else context - len(self.ids)
        return min(self.max_tokens, room)


@dataclass(frozen=True, slots=True)
class Completion:
    """The sampled ids and their log-probabilities."""

    ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    stopped: bool
    """Whether the last id is a stop token; otherwise the token budget was used up."""


@dataclass(slots=True)
class SampledSequence:
    """A request with its tokens so far."""

    index: int
    request: Request
    tokens_left: int
    """Tokens that may still be sampled."""
    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    num_reported: int = 0
    """Tokens that the request's `on_tokens` has been called with."""

    @property
    def length(self) -> int:
        return len(self.request.ids) + len(self.ids)

    @property
    def hit_stop(self) -> bool:
        return bool(self.ids) and self.ids[-1] in self.request.stop_token_ids

    @property
    def is_finished(self) -> bool:
        return self.tokens_left <= 0 or self.hit_stop

    @property
    def completion(self) -> Completion:
        return Completion(tuple(self.ids), tuple(self.logprobs), self.hit_stop)

    def append(self, ids: Sequence[int], logprobs: Sequence[float]) -> None:
        if not all(map(math.isfinite, logprobs)):
            raise ValueError("the model's logits are not finite; load it in another dtype")
        self.ids += ids
        self.logprobs += logprobs
        self.tokens_left -= len(ids)

    def report_tokens(self) -> None:
        start, self.num_reported = self.num_reported, len(self.ids)
        if self.request.on_tokens is not None and start < len(self.ids):
            self.request.on_tokens(start, self.ids[start:], self.logprobs[start:])


DeliverCompletion = Callable[[int, Completion], None]
"""Takes the index of a request and its completion."""
IsWanted = Callable[[int], bool]
"""Whether the request with this index still has a waiting caller."""
PollRequests = Callable[[int], Sequence[Request]]
"""Returns new requests, at most as many as given. Their indices continue the earlier ones."""


def no_more_requests(room: int) -> Sequence[Request]:
    return ()


class Engine(Protocol):
    """Completes batches of requests. It is called by one thread at a time."""

    stats: DecodeStats

    def run(
        self,
        requests: Sequence[Request],
        deliver: DeliverCompletion,
        is_wanted: IsWanted,
        poll_requests: PollRequests,
    ) -> None:
        """Complete these requests and, with continuous batching, new ones of `poll_requests`."""

    def refresh(self) -> None:
        """Take over the model's changed weights, and drop caches made with the old ones."""

    def free_cache(self, *, larger_than: int = 0) -> None:
        """Give back device memory that is kept while idle, if it is more bytes than that."""
