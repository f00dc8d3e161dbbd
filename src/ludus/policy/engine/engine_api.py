"""What is asked of an engine, what comes back, and what an engine is.

Only the words that those who ask and those who answer have in common.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from ludus.errors import RequestRefused
from ludus.policy.engine.decode_stats import DecodeStats
from ludus.policy.engine.sampling import SamplingParams

if TYPE_CHECKING:
    from ludus.policy.vision.images import ProcessedImage


def max_context_length(model: Any) -> int | None:
    """How many tokens a prompt and its reply may have together, if the model says so."""
    config = model.config.get_text_config(decoder=True)
    found = getattr(config, "max_position_embeddings", None)
    return found if isinstance(found, int) and found > 0 else None


def check_prompt_fits(prompt: Sequence[int], context: int | None) -> None:
    """A prompt that leaves no room for a single token: the model cannot so much as begin."""
    if context is not None and len(prompt) >= context:
        raise RequestRefused(
            f"The prompt has {len(prompt):,} tokens, and the model reads {context:,} at most: no "
            "room is left for a reply. Give it tasks that show less, or take a model that reads "
            "more."
        )


@dataclass(frozen=True, slots=True)
class Request:
    """A prompt, and how it is to be gone on with."""

    ids: tuple[int, ...]
    max_tokens: int
    stop_token_ids: Collection[int]
    sampling: SamplingParams
    seed: int
    images: tuple[ProcessedImage, ...] = ()
    """What the placeholders among the ids stand for, in their order."""

    def max_new_tokens(self, context: int | None) -> int:
        """Tokens that the reply may have, in a model that can read so many."""
        if not self.ids:
            return 0
        room = self.max_tokens if context is None else context - len(self.ids)
        return min(self.max_tokens, room)


@dataclass(frozen=True, slots=True)
class Completion:
    """What the model said."""

    ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    stopped: bool
    """Whether it ended with a stop, which is its last id; otherwise its budget ended it."""


DeliverCompletion = Callable[[int, Completion], None]
IsWanted = Callable[[int], bool]
PollRequests = Callable[[int], Sequence[Request]]
"""Requests that have come in since, at most so many. Their numbers go on after those before."""


def no_more_requests(room: int) -> Sequence[Request]:
    return ()


class Engine(Protocol):
    """What answers a batch. It is called by one thread at a time."""

    stats: DecodeStats

    def run(
        self,
        requests: Sequence[Request],
        deliver: DeliverCompletion,
        is_wanted: IsWanted,
        poll_requests: PollRequests,
    ) -> None:
        """Answer these, and whom `more` names if others can still join."""

    def refresh(self) -> None:
        """The model's weights have changed: take them over, and forget what the old ones made."""
