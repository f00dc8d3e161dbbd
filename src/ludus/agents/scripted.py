"""An agent with scripted replies: for tests, and for trying out an environment."""

from __future__ import annotations

from collections.abc import Sequence

from ludus.agents.agent import Agent, EpisodeContext, Player, Reply
from ludus.agents.tool_calls import build_tool_call_message
from ludus.data.messages import Message
from ludus.data.tool_schema import ToolCall

ScriptedReply = Reply | ToolCall | Sequence[ToolCall] | str | Exception


class ScriptedAgent(Agent):
    """Gives the same replies in every episode, and empty ones after the last.

    A reply is a tool call, several at once, text, a complete `Reply`, or an exception to raise.
    """

    provider = "scripted"

    def __init__(self, *script: ScriptedReply) -> None:
        self._script = script

    async def begin(self, context: EpisodeContext) -> Player:
        return _ScriptedPlayer(self._script)


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
