"""Models behind OpenAI's chat API: OpenAI's own, and those of every server that speaks it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ludus.agents.agent import EpisodeContext, Player, Reply
from ludus.agents.api_agent import APIAgent, reply_from_refusal
from ludus.agents.api_keys import ApiKey
from ludus.agents.error_messages import ContentFiltered, ContextLengthExceeded
from ludus.agents.openai_wire import build_messages, parse_reply
from ludus.data.messages import Message
from ludus.data.tool_schema import JsonObject
from ludus.errors import ConfigError, RequestRefused

PostFn = Callable[[JsonObject], Awaitable[Reply]]

_LEGACY_LIMIT_FIELD, _LIMIT_FIELD = "max_tokens", "max_completion_tokens"
_TEMPLATE_KWARGS = "chat_template_kwargs"
"""As vLLM and SGLang call it, in a request and here."""


class OpenAIAgent(APIAgent):
    """A model that is asked over the chat completions API.

    An endpoint makes it any server with that API: vLLM, llama.cpp, Ollama, OpenRouter and so on.

    Args:
        model: its name, as the server writes it.
        chat_template_kwargs: arguments of the chat template, such as `enable_thinking`, for
            servers that take them in a request: vLLM, SGLang, llama.cpp.
        settings: see `RemoteAgent`.
    """

    vendor = "openai"
    default_base_url = "https://api.openai.com/v1"

    def __init__(
        self, model: str, *, chat_template_kwargs: Mapping[str, Any] | None = None, **settings: Any
    ) -> None:
        super().__init__(model, **settings)
        if chat_template_kwargs:
            if _TEMPLATE_KWARGS in self._request_options.get("extra", {}):
                raise ConfigError(f"{_TEMPLATE_KWARGS} is given twice. Leave it out of --extra.")
            self._request_options[_TEMPLATE_KWARGS] = dict(chat_template_kwargs)
        # OpenAI's newer models refuse the old name, many other servers do not know the new one.
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
        """One reply. A full context and a provider's filter are replies too."""
        body: JsonObject = {"model": self.model, "messages": build_messages(messages)}
        if tools:
            # Also OpenAI's default, but llama-cpp-python ignores tools without it.
            body |= {"tools": list(tools), "tool_choice": "auto"}

        async def post(limits: JsonObject) -> Reply:
            return await self.client.post(
                "/chat/completions",
                {**body, **limits, **self._request_fields()},
                read,
                sample=sample,
            )

        def read(reply: JsonObject, kept: bool) -> Reply:
            read = parse_reply(reply, messages)
            return replace(read, usage=self._with_cost(read.usage, kept))

        try:
            return await (
                post({}) if max_tokens is None else self._post_with_limit(post, max_tokens)
            )
        except (ContextLengthExceeded, ContentFiltered) as error:
            return reply_from_refusal(error)

    async def _post_with_limit(self, post: PostFn, max_tokens: int) -> Reply:
        """Ask with a limit, under the name that this server knows it by."""
        name = self._limit_field
        try:
            return await post({name: max_tokens})
        except ContextLengthExceeded:
            # Many servers count the limit as if it were used up. What is left is less than it,
            # so that without one the reply is not longer.
            return await post({})
        except RequestRefused as error:
            if name not in str(error):
                raise
            other = _LIMIT_FIELD if name == _LEGACY_LIMIT_FIELD else _LEGACY_LIMIT_FIELD
        reply = await post({other: max_tokens})
        self._limit_field = other
        return reply


class _OpenAIPlayer(Player):
    def __init__(self, agent: OpenAIAgent, situation: EpisodeContext) -> None:
        self._agent = agent
        self._tools = [tool.to_openai() for tool in situation.tools]
        self._member = situation.member

    async def act(self, messages: Sequence[Message], *, max_tokens: int | None = None) -> Reply:
        return await self._agent.request_reply(
            messages, self._tools, max_tokens=max_tokens, sample=self._member
        )
