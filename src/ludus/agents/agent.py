"""The agent interface: shown messages and tools, an agent replies with a message.

An agent plays many episodes at once; the state of one episode is kept by a `Player`.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import ClassVar, Self

from ludus.data.episode import Tokens, Usage
from ludus.data.messages import Call, Function, Message
from ludus.data.tool_schema import JsonObject, ToolCall, ToolSpec
from ludus.environment.runner import EnvironmentRunner


@dataclass(frozen=True, slots=True)
class EpisodeContext:
    """The episode that an agent is about to play."""

    environment: str
    """The environment's spec."""
    tools: tuple[ToolSpec, ...]
    task: Mapping[str, object] = field(default_factory=dict)
    seed: int | None = None
    member: int = 0
    """The index of this attempt within its group, in which all have the same task."""
    runner: EnvironmentRunner | None = None
    """The environment itself, if it runs in this process."""


EnvironmentTools = Mapping[str, Sequence[ToolSpec]]
"""The tools of environments by spec; empty if they are not known yet."""
NO_ENVIRONMENTS: EnvironmentTools = {}


class FinishReason(StrEnum):
    """Why a reply ended."""

    STOP = "stop"
    """The model ended it."""
    LENGTH = "length"
    """It was truncated, at its token limit or because the context is full."""
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class Reply:
    """An agent's reply."""

    message: Message
    finish_reason: FinishReason = FinishReason.STOP
    usage: Usage = field(default_factory=Usage)
    tokens: Tokens | None = None
    """The tokens of the whole episode so far; local models only."""
    explored: bool = False
    """Whether the action is random, instead of the agent's own."""
    tutor: Reply | None = None
    """What the tutor replies in the same state, if there is one."""

    @property
    def is_complete(self) -> bool:
        """Whether the reply has content and was neither truncated nor refused."""
        message = self.message
        has_content = message.content or message.tool_calls or message.reasoning_content
        return bool(has_content) and self.finish_reason is FinishReason.STOP


class Player(ABC):
    """An agent in one episode."""

    @abstractmethod
    async def act(self, messages: Sequence[Message], *, max_tokens: int | None = None) -> Reply:
        """Return the next message. Failures raise an `AgentError`."""

    async def close(self) -> None:  # noqa: B027 - most hold nothing
        """Release what the episode holds."""


class Agent(ABC):
    """Plays episodes. Use it as an async context manager."""

    provider: str
    made_by: ClassVar[str] = "ludus.agent"
    """The function that makes one from a text; `check_field_types` names it."""

    def describe(self) -> JsonObject:
        """Provider, model and sampling options as episodes record them, without secrets."""
        return {"provider": self.provider}

    def check(self) -> None:  # noqa: B027
        """Raise for a config that is known to be wrong; loads no model and uses no network."""

    async def prepare(self, environments: EnvironmentTools = NO_ENVIRONMENTS) -> None:  # noqa: B027
        """Check before the first episode whether it can play these environments."""

    @abstractmethod
    async def begin(self, context: EpisodeContext) -> Player:
        """Start an episode."""

    async def close(self) -> None:  # noqa: B027
        """Release all resources. May be called twice."""

    @property
    def concurrency_limit(self) -> int | None:
        """Episodes that it can serve at once at the moment; None: no limit."""
        return None

    @property
    def is_stateless(self) -> bool:
        """Whether copies of it in other processes play the same episodes as it does itself.

        It can be pickled then, and its replies depend on nothing but the episode. A subclass may
        add state, so that a class speaks for itself alone: `type(self) is OracleAgent`.
        """
        return False

    @property
    def local_model(self) -> str | None:
        """The model that it loads into this process, if any."""
        return None

    @property
    def sampled_tokens(self) -> int | None:
        """Tokens that a local model has sampled so far, including unfinished replies."""
        return None

    @property
    def retry_after_s(self) -> float:
        """Seconds for which the provider has asked all calls to wait."""
        return 0.0

    @property
    def stall_expected(self) -> bool:
        """Whether replies are known to be delayed, so that a stall is no reason to warn."""
        return self.retry_after_s > 0

    @property
    def has_price(self) -> bool:
        """Whether the cost of a reply is known."""
        return True

    @property
    def faults(self) -> Mapping[str, int]:
        """Faults that were retried, counted by kind."""
        return {}

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()


def build_tool_call_message(*calls: ToolCall | None, position: int) -> Message:
    """Build an agent's message with these calls and their text; skips calls that are None.

    `position` is its index in the conversation, from which the ids of the calls are made.
    """
    made = [call for call in calls if call is not None]
    tool_calls = tuple(
        Call(
            id=f"call_{position}_{number}",
            function=Function(
                name=call.name, arguments=json.dumps(call.arguments, ensure_ascii=False)
            ),
        )
        for number, call in enumerate(made)
    )
    text = "\n".join(call.text for call in made if call.text)
    return Message(role="assistant", content=text, tool_calls=tool_calls or None)
