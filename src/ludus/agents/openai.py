"""Models behind OpenAI's chat completions API: OpenAI's own, and those of compatible servers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ludus.agents.agent import EpisodeContext, Player, Reply
from ludus.agents.api_agent import APIAgent
from ludus.agents.api_keys import ApiKey
from ludus.agents.error_messages import ContentFiltered, ContextLengthExceeded
from ludus.agents.openai_wire import build_messages, parse_reply
from ludus.data.messages import Message
from ludus.data.tool_schema import JsonObject
from ludus.errors import ConfigError, RequestRefused

PostFn = Callable[[JsonObject], Awaitable[Reply]]

_LEGACY_LIMIT_FIELD, _LIMIT_FIELD = "max_tokens", "max_completion_tokens"
_TEMPLATE_KWARGS = "chat_template_kwargs"
"""The name that vLLM and SGLang give it in a request."""


class OpenAIAgent(APIAgent):
    """A model behind the chat completions API.

    With an endpoint, any server that has this API: vLLM, llama.cpp, Ollama, OpenRouter and so on.

    Args:
        model: its name at the server.
        chat_template_kwargs: arguments of the chat template, such as `enable_thinking`, for
            servers that accept them in a request: vLLM, SGLang, llama.cpp.
        options: see `APIAgent`.
    """

    vendor = "openai"
    default_base_url = "https://api.openai.com/v1"

    def __init__(
        self, model: str, *, chat_template_kwargs: Mapping[str, Any] | None = None, **options: Any
    ) -> None:
        super().__init__(model, **options)
        if chat_template_kwargs:
            if _TEMPLATE_KWARGS in self._request_options.get("extra", {}):
                raise ConfigError(f"`{_TEMPLATE_KWARGS}` is also in `extra`. Give it only once.")
            self._request_options[_TEMPLATE_KWARGS] = dict(chat_template_kwargs)
        # OpenAI's newer models refuse the legacy name; many other servers know no other.
        self._limit_field = _LEGACY_LIMIT_FIELD if self.endpoint else _LIMIT_FIELD

    def _headers(self, key: ApiKey | None) -> dict[str, str]:
        return {"Authorization": f"Bearer {key.reveal()}"} if key else {}

    async def begin(self, context: EpisodeContext) -> Player:
        return _OpenAIPlayer(self, context)

    async def request_reply(
        self,
        messages: Sequence[Message],
        tools: Sequence[JsonObject],
        *,
        max_tokens: int | None = None,
        sample: int = 0,
    ) -> Reply:
        """Request one reply. A full context and a content filter are replies too."""
        body: JsonObject = {"model": self.model, "messages": build_messages(messages)}
        if tools:
            # "auto" is OpenAI's default, but llama-cpp-python ignores tools without it.
            body |= {"tools": list(tools), "tool_choice": "auto"}

        async def post(limit: JsonObject) -> Reply:
            request = {**body, **limit, **self._request_fields()}
            return await self.client.post("/chat/completions", request, parse, sample=sample)

        def parse(response: JsonObject, cached: bool) -> Reply:
            reply = parse_reply(response, messages)
            return replace(reply, usage=self._with_cost(reply.usage, cached))

        try:
            if max_tokens is None:
                return await post({})
            return await self._post_with_limit(post, max_tokens)
        except (ContextLengthExceeded, ContentFiltered) as error:
            return self.reply_from_refusal(error)

    async def _post_with_limit(self, post: PostFn, max_tokens: int) -> Reply:
        """Post with a token limit, and find out under which name the server knows it."""
        field = self._limit_field
        try:
            return await post({field: max_tokens})
        except ContextLengthExceeded:
            # Many servers reject a limit that does not fit beside the prompt. What is left of the
            # context is then less than the limit, so without one the reply is not longer.
            return await post({})
        except RequestRefused as error:
            if field not in str(error):
                raise
        other = _LIMIT_FIELD if field == _LEGACY_LIMIT_FIELD else _LEGACY_LIMIT_FIELD
        reply = await post({other: max_tokens})
        self._limit_field = other
        return reply


class _OpenAIPlayer(Player):
    def __init__(self, agent: OpenAIAgent, context: EpisodeContext) -> None:
        self._agent = agent
        self._tools = [tool.to_openai() for tool in context.tools]
        self._member = context.member

    async def act(self, messages: Sequence[Message], *, max_tokens: int | None = None) -> Reply:
        return await self._agent.request_reply(
            messages, self._tools, max_tokens=max_tokens, sample=self._member
        )
