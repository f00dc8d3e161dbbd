"""An agent whose replies a Python function writes."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Sequence

from ludus.agents.agent import Agent, EpisodeContext, Player, Reply
from ludus.data.messages import Message
from ludus.data.tool_schema import JsonObject

ReplyFunction = Callable[[Sequence[Message]], str | Awaitable[str]]


class FunctionAgent(Agent):
    """Replies with the text that a function returns for the messages so far; it may be async."""

    provider = "function"

    def __init__(self, function: ReplyFunction) -> None:
        self._function = function

    def describe(self) -> JsonObject:
        name = getattr(self._function, "__qualname__", type(self._function).__name__)
        return {"provider": self.provider, "function": f"{self._function.__module__}:{name}"}

    async def begin(self, context: EpisodeContext) -> Player:
        return _FunctionPlayer(self._function)


class _FunctionPlayer(Player):
    def __init__(self, function: ReplyFunction) -> None:
        self._function = function

    async def act(self, messages: Sequence[Message], *, max_tokens: int | None = None) -> Reply:
        text = self._function(messages)
        if inspect.isawaitable(text):
            text = await text
        return Reply(Message(role="assistant", content=text))
