"""Models behind Anthropic's Messages API."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ludus.agents.agent import EpisodeContext, Player, Reply
from ludus.agents.anthropic_wire import (
    BlockHistory,
    Blocks,
    build_messages,
    build_system,
    build_tool,
    parse_reply,
)
from ludus.agents.api_agent import APIAgent, reply_from_refusal
from ludus.agents.api_keys import ApiKey
from ludus.agents.error_messages import ContentFiltered, ContextLengthExceeded
from ludus.data.messages import Message
from ludus.data.tool_schema import JsonObject

DEFAULT_MAX_TOKENS = 4096


class AnthropicAgent(APIAgent):
    """A model that is asked over the Messages API.

    Thinking is switched on by an extra field, as the API has it:
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
    ) -> ReplyWithBlocks:
        """One reply, and the blocks that it is made of."""

        def read(reply: JsonObject, kept: bool) -> ReplyWithBlocks:
            read, blocks = parse_reply(reply, messages)
            return replace(read, usage=self._with_cost(read.usage, kept)), blocks

        request = {"model": self.model, **body, **self._request_fields()}
        return await self.client.post("/messages", request, read, sample=sample)


ReplyWithBlocks = tuple[Reply, Blocks]


class _AnthropicPlayer(Player):
    def __init__(self, agent: AnthropicAgent, situation: EpisodeContext) -> None:
        self._agent = agent
        self._tools = [build_tool(tool) for tool in situation.tools]
        self._member = situation.member
        self._history = BlockHistory()

    async def act(self, messages: Sequence[Message], *, max_tokens: int | None = None) -> Reply:
        """The next message. A full context and a provider's filter are replies too."""
        try:
            reply, blocks = await self._agent.request_reply(
                self._request_body(messages, max_tokens), messages, self._member
            )
        except (ContextLengthExceeded, ContentFiltered) as error:
            return reply_from_refusal(error)
        self._history.record(len(messages), reply.message, blocks)
        return reply

    def _request_body(self, messages: Sequence[Message], max_tokens: int | None) -> JsonObject:
        body: JsonObject = {
            "max_tokens": max_tokens or DEFAULT_MAX_TOKENS,  # this API insists on one
            "messages": build_messages(messages, self._history),
        }
        if system := build_system(messages):
            body["system"] = system
        if self._tools:
            body["tools"] = self._tools
        return body
