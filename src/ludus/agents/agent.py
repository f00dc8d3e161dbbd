"""What an agent is: it is shown messages and tools, and answers with a message.

An agent plays many episodes at once; what it has to remember within one is kept by a `Player`.
Environments, retries of whole episodes and files are not its business.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Self

from ludus.data.episode import Tokens, Usage
from ludus.data.messages import Message
from ludus.data.tool_schema import JsonObject, ToolSpec


@dataclass(frozen=True, slots=True)
class EpisodeContext:
    """What an agent is told when an episode begins."""

    environment: str
    """The spec that is played."""
    tools: tuple[ToolSpec, ...]
    task: Mapping[str, Any] = field(default_factory=dict)
    seed: int | None = None
    member: int = 0
    """Which attempt at the task this is: members of a group are told apart by it."""


class FinishReason(StrEnum):
    """How a reply ended."""

    STOP = "stop"
    """It said, or called, all that it wanted."""
    LENGTH = "length"
    """It was cut off: at its token limit, or because the context is full."""
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class Reply:
    """What an agent answered."""

    message: Message
    finish_reason: FinishReason = FinishReason.STOP
    usage: Usage = field(default_factory=Usage)
    tokens: Tokens | None = None
    """The whole episode so far, token by token, where the model is a local one."""


class Player(ABC):
    """An agent in one episode."""

    @abstractmethod
    async def act(self, messages: Sequence[Message], *, max_tokens: int | None = None) -> Reply:
        """The next message. What fails on the way raises an `AgentError`."""

    async def close(self) -> None:  # noqa: B027 - most have nothing to give back
        """The episode is over."""


class Agent(ABC):
    """Who acts. Use it as an async context manager."""

    provider: str

    def describe(self) -> JsonObject:
        """Provider, model and sampling settings, as an episode records them; never a secret."""
        return {"provider": self.provider}

    def check(self) -> None:  # noqa: B027
        """Raise for settings that are known to be wrong; loads no model and uses no network."""

    async def prepare(self, environments: Sequence[str] = ()) -> None:  # noqa: B027
        """Find out, before the first episode, whether it can play these at all."""

    @abstractmethod
    async def begin(self, context: EpisodeContext) -> Player:
        """Take part in an episode."""

    async def close(self) -> None:  # noqa: B027
        """Give back what it holds. May be called twice."""

    @property
    def concurrency_limit(self) -> int | None:
        """How many episodes it can serve at once just now; None: as many as there are."""
        return None

    @property
    def local_model(self) -> str | None:
        """The model that it loads into this process, which takes a while; None: none."""
        return None

    @property
    def sampled_tokens(self) -> int | None:
        """Tokens that a local model has sampled so far, those of unfinished replies included."""
        return None

    @property
    def retry_after_s(self) -> float:
        """Seconds that its provider has asked everybody to wait from now on."""
        return 0.0

    @property
    def stall_expected(self) -> bool:
        """Whether its replies may take long, and nobody need wonder why."""
        return self.retry_after_s > 0

    @property
    def has_price(self) -> bool:
        """Whether it is known what a reply costs."""
        return True

    @property
    def faults(self) -> Mapping[str, int]:
        """What went wrong on the way to its model, by kind; it was tried again."""
        return {}

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()
