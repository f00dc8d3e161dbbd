"""The interface between the batcher and its engines: requests, completions and `Engine`."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
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
        """Return the token budget of the completion, given the model's context length."""
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


DeliverCompletion = Callable[[int, Completion], None]
"""Takes the index of a request and its completion."""
IsWanted = Callable[[int], bool]
"""Whether the request with this index still has a waiting caller."""
PollRequests = Callable[[int], Sequence[Request]]
"""Returns new requests, at most as many as given. Their indices continue those of earlier ones."""


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
        """Complete these requests and, with continuous batching, those of `poll_requests`."""

    def refresh(self) -> None:
        """Take over the model's changed weights, and drop caches made with the old ones."""

    def free_cache(self, *, larger_than: int = 0) -> None:
        """Give back device memory that is kept while idle, if it is more bytes than that."""
