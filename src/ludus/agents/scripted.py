"""An agent that says what it was told to say: for tests, and for looking at an environment."""

from __future__ import annotations

from collections.abc import Sequence

from ludus.agents.agent import Agent, EpisodeContext, Player, Reply
from ludus.data.messages import Message, build_tool_call_message
from ludus.data.tool_schema import ToolCall

ScriptedReply = Reply | ToolCall | Sequence[ToolCall] | str | Exception


class ScriptedAgent(Agent):
    """Says the same lines in every episode; after the last it has nothing more to say.

    A line is a tool call, several of them at once, words, a whole reply, or an error to raise.
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
        line = next(self._replies, "")
        if isinstance(line, Exception):
            raise line
        if isinstance(line, Reply):
            return line
        if isinstance(line, str):
            return Reply(Message(role="assistant", content=line))
        calls = [line] if isinstance(line, ToolCall) else line
        return Reply(build_tool_call_message(*calls, position=len(messages)))
