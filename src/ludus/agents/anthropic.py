"""Models behind Anthropic's Messages API."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ludus.agents.agent import Player, Reply, Situation
from ludus.agents.anthropic_wire import (
    Blocks,
    Memory,
    read_reply,
    write_messages,
    write_system,
    write_tool,
)
from ludus.agents.complaint import ContextFull, Filtered
from ludus.agents.keys import Key
from ludus.agents.remote import RemoteAgent, stopped
from ludus.data.messages import Message
from ludus.data.tools import JsonObject

DEFAULT_MAX_TOKENS = 4096


class AnthropicAgent(RemoteAgent):
    """A model that is asked over the Messages API.

    Thinking is switched on by an extra field, as the API has it:
    `extra={"thinking": {"type": "enabled", "budget_tokens": 2000}}`.
    """

    family = "anthropic"
    home = "https://api.anthropic.com/v1"

    def _headers(self, key: Key | None) -> dict[str, str]:
        headers = {"anthropic-version": "2023-06-01"}
        return {**headers, "x-api-key": key.reveal()} if key else headers

    async def begin(self, situation: Situation) -> Player:
        return _AnthropicPlayer(self, situation)

    async def ask(self, body: JsonObject, messages: Sequence[Message], sample: int) -> Answer:
        """One reply, and the blocks that it is made of."""

        def read(reply: JsonObject, kept: bool) -> Answer:
            read, blocks = read_reply(reply, messages)
            return replace(read, usage=self._priced(read.usage, kept)), blocks

        request = {"model": self.model, **body, **self._fields()}
        return await self.api.ask("/messages", request, read, sample=sample)


Answer = tuple[Reply, Blocks]


class _AnthropicPlayer(Player):
    def __init__(self, agent: AnthropicAgent, situation: Situation) -> None:
        self._agent = agent
        self._tools = [write_tool(tool) for tool in situation.tools]
        self._member = situation.member
        self._memory = Memory()

    async def act(self, messages: Sequence[Message], *, max_tokens: int | None = None) -> Reply:
        """The next message. A full context and a provider's filter are replies too."""
        try:
            reply, blocks = await self._agent.ask(
                self._body(messages, max_tokens), messages, self._member
            )
        except (ContextFull, Filtered) as error:
            return stopped(error)
        self._memory.keep(len(messages), reply.message, blocks)
        return reply

    def _body(self, messages: Sequence[Message], max_tokens: int | None) -> JsonObject:
        body: JsonObject = {
            "max_tokens": max_tokens or DEFAULT_MAX_TOKENS,  # this API insists on one
            "messages": write_messages(messages, self._memory),
        }
        if system := write_system(messages):
            body["system"] = system
        if self._tools:
            body["tools"] = self._tools
        return body
