"""Agents with scripted replies, or replies of a function: for tests and first trials."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Sequence

from ludus.agents.agent import (
    NO_ENVIRONMENTS,
    Agent,
    EnvironmentTools,
    EpisodeContext,
    Player,
    Reply,
    build_tool_call_message,
)
from ludus.data.messages import Message
from ludus.data.tool_schema import JsonObject, ToolCall
from ludus.errors import ConfigError

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


ScriptedReply = Reply | ToolCall | Sequence[ToolCall] | str | Exception


class ScriptedAgent(Agent):
    """Gives the same replies in every episode, and empty ones after the last.

    A reply is a tool call, several at once, text, a complete `Reply`, or an exception to raise.
    """

    provider = "scripted"

    def __init__(self, *script: ScriptedReply) -> None:
        self._script = script

    async def prepare(self, environments: EnvironmentTools = NO_ENVIRONMENTS) -> None:
        called = {name for reply in self._script for name in _called_tools(reply)}
        for spec, tools in environments.items():
            offered = {tool.name for tool in tools}
            if called and offered and called.isdisjoint(offered):
                raise ConfigError(
                    f"The script calls {', '.join(sorted(called))}, but {spec} has the tools "
                    f"{', '.join(sorted(offered))}. Call one of them."
                )

    async def begin(self, context: EpisodeContext) -> Player:
        return _ScriptedPlayer(self._script)


def _called_tools(reply: ScriptedReply) -> list[str]:
    if isinstance(reply, Reply):
        return [call.function.name for call in reply.message.tool_calls or ()]
    if isinstance(reply, str | Exception):
        return []
    return [call.name for call in ([reply] if isinstance(reply, ToolCall) else reply)]


class _ScriptedPlayer(Player):
    def __init__(self, script: Sequence[ScriptedReply]) -> None:
        self._replies = iter(script)

    async def act(self, messages: Sequence[Message], *, max_tokens: int | None = None) -> Reply:
        reply = next(self._replies, "")
        if isinstance(reply, Exception):
            raise reply
        if isinstance(reply, Reply):
            return reply
        if isinstance(reply, str):
            return Reply(Message(role="assistant", content=reply))
        calls = [reply] if isinstance(reply, ToolCall) else reply
        return Reply(build_tool_call_message(*calls, position=len(messages)))
