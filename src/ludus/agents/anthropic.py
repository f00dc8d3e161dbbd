"""Models behind Anthropic's Messages API."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ludus.agents.agent import EpisodeContext, Player, Reply
from ludus.agents.anthropic_wire import (
    BlockHistory,
    Blocks,
    build_anthropic_tool,
    build_messages,
    build_system,
    parse_reply,
)
from ludus.agents.api_agent import APIAgent
from ludus.agents.api_keys import ApiKey
from ludus.agents.error_messages import ContentFiltered, ContextLengthExceeded
from ludus.data.messages import Message
from ludus.data.tool_schema import JsonObject

DEFAULT_MAX_TOKENS = 4096
"""The API requires a limit."""


class AnthropicAgent(APIAgent):
    """A model behind the Messages API.

    To enable thinking, set the API's own field:
    `extra={"thinking": {"type": "enabled", "budget_tokens": 2000}}`.
    """

    vendor = "anthropic"
    default_base_url = "https://api.anthropic.com/v1"

    def _headers(self, key: ApiKey | None) -> dict[str, str]:
        headers = {"anthropic-version": "2023-06-01"}
        return {**headers, "x-api-key": key.reveal()} if key else headers

    async def begin(self, context: EpisodeContext) -> Player:
        return _AnthropicPlayer(self, context)

    async def request_reply(
        self, body: JsonObject, messages: Sequence[Message], sample: int
    ) -> tuple[Reply, Blocks]:
        """Request one reply; returns it with its content blocks."""

        def parse(response: JsonObject, cached: bool) -> tuple[Reply, Blocks]:
            reply, blocks = parse_reply(response, messages)
            return replace(reply, usage=self._with_cost(reply.usage, cached)), blocks

        request = {"model": self.model, **body, **self._request_fields()}
        return await self.client.post("/messages", request, parse, sample=sample)


class _AnthropicPlayer(Player):
    def __init__(self, agent: AnthropicAgent, context: EpisodeContext) -> None:
        self._agent = agent
        self._tools = [build_anthropic_tool(tool) for tool in context.tools]
        self._member = context.member
        self._history = BlockHistory()

    async def act(self, messages: Sequence[Message], *, max_tokens: int | None = None) -> Reply:
        """Return the next message. A full context and a content filter are replies too."""
        body: JsonObject = {
            "max_tokens": max_tokens or DEFAULT_MAX_TOKENS,
            "messages": build_messages(messages, self._history),
        }
        if system := build_system(messages):
            body["system"] = system
        if self._tools:
            body["tools"] = self._tools
        try:
            reply, blocks = await self._agent.request_reply(body, messages, self._member)
        except (ContextLengthExceeded, ContentFiltered) as error:
            return self._agent.reply_from_refusal(error)
        self._history.record(len(messages), reply.message, blocks)
        return reply
