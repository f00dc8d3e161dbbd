"""Models behind OpenAI's chat completions API: OpenAI's own, and models of compatible servers.

Compatible servers agree more on requests than on responses, so requests are built strictly and
responses parsed leniently.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from ludus.agents.agent import FinishReason, Reply
from ludus.agents.api_agent import (
    APIAgent,
    BlockHistory,
    RawToolCall,
    parse_api_calls,
    sanitize_name,
)
from ludus.agents.api_keys import ApiKey
from ludus.agents.provider_errors import (
    ContextLengthExceeded,
    response_object,
    response_token_count,
)
from ludus.data.episode import Usage
from ludus.data.messages import ImagePart, Message, Part, Text
from ludus.data.tool_schema import JsonObject, parse_arguments
from ludus.errors import BadReply, ConfigError, RequestRefused

_FINISH_REASONS = {"length": FinishReason.LENGTH, "content_filter": FinishReason.REFUSED}


def build_messages(messages: Sequence[Message]) -> list[JsonObject]:
    """Convert messages to OpenAI's format, without reasoning: servers ignore or refuse it.

    Tool messages cannot hold images, so these follow in a user message after the last tool message
    of the turn: the API wants all results before anything else.
    """
    built: list[JsonObject] = []
    images: list[JsonObject] = []
    for message in messages:
        if message.role == "tool":
            built.append(_build_message(message, message.text))
            parts = [_build_part(part) for part in message.content if isinstance(part, ImagePart)]
            if parts:
                label = f"What {message.tool_call_id} shows:"
                images += [{"type": "text", "text": label}, *parts]
            continue
        if images:
            built.append({"role": "user", "content": images})
            images = []
        if isinstance(message.content, str):
            built.append(_build_message(message, message.content))
        else:
            parts = [_build_part(part) for part in message.content]
            built.append(_build_message(message, parts))
    if images:
        built.append({"role": "user", "content": images})
    return built


def _build_message(message: Message, content: str | list[JsonObject]) -> JsonObject:
    built: JsonObject = {"role": message.role}
    if message.role == "tool":
        built["tool_call_id"] = message.tool_call_id or ""
    if message.name is not None:
        built["name"] = message.name
    built["content"] = content
    if message.tool_calls:
        built["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {
                    "name": sanitize_name(call.function.name),
                    "arguments": call.function.arguments
                    if parse_arguments(call.function.arguments)
                    else "{}",
                },
            }
            for call in message.tool_calls
        ]
    return built


def _build_part(part: Part) -> JsonObject:
    if isinstance(part, Text):
        return {"type": "text", "text": part.text}
    return {"type": "image_url", "image_url": {"url": part.image_url.url}}


def parse_reply(body: JsonObject, messages: Sequence[Message]) -> Reply:
    """Parse OpenAI's response to `messages`; its calls get ids that these do not have."""
    choices = body.get("choices")
    choice = choices[0] if isinstance(choices, list) and choices else None
    if not isinstance(choice, dict) or not isinstance(choice.get("message"), dict):
        raise BadReply("the reply has no message")
    if choice.get("error") or choice.get("finish_reason") == "error":
        raise BadReply(f"the reply is incomplete: {json.dumps(choice.get('error'))}")
    message = choice["message"]
    content, refusal = _content_text(message.get("content")), _content_text(message.get("refusal"))
    reasoning = _content_text(message.get("reasoning_content") or message.get("reasoning"))
    if not reasoning:
        reasoning, content = split_reasoning(content)
    calls = message.get("tool_calls")
    if not calls and message.get("function_call"):
        calls = [{"function": message["function_call"]}]  # OpenAI's older form.
    raw_calls = []
    for call in map(response_object, calls if isinstance(calls, list) else []):
        function = response_object(call.get("function"))
        raw_calls.append(
            RawToolCall(call.get("id"), function.get("name"), function.get("arguments"))
        )
    finish_reason = _FINISH_REASONS.get(str(choice.get("finish_reason")), FinishReason.STOP)
    return Reply(
        Message(
            role="assistant",
            content=content or refusal,
            reasoning_content=reasoning or None,
            tool_calls=parse_api_calls(raw_calls, messages) or None,
        ),
        FinishReason.REFUSED if refusal else finish_reason,
        parse_usage(body.get("usage")),
    )


def _content_text(content: object) -> str:
    """Text that comes as a string, in parts, or not at all."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        return ""
    texts = (part.get("text") for part in content if isinstance(part, dict))
    return "".join(text for text in texts if isinstance(text, str))


def split_reasoning(text: str) -> tuple[str, str]:
    """Split reasoning from content, for OpenAI-compatible servers that keep <think> tags.

    Templates that open the tag in the prompt leave only the closing one; a reply that was truncated
    while thinking has only the opening one.
    """
    if "<think>" not in text and "</think>" not in text:
        return "", text
    before, opening, rest = text.partition("<think>")
    if opening and before.strip():
        return "", text
    reasoning, closing, content = (rest if opening else text).partition("</think>")
    return reasoning.strip(), content.lstrip() if closing else ""


def parse_usage(fields: object) -> Usage:
    """Parse OpenAI's token counts, 0 if missing. Gateways also send the cost."""
    usage = response_object(fields)
    prompt_details = response_object(usage.get("prompt_tokens_details"))
    completion_details = response_object(usage.get("completion_tokens_details"))
    cost = usage.get("cost")
    return Usage(
        prompt_tokens=response_token_count(usage.get("prompt_tokens")),
        completion_tokens=response_token_count(usage.get("completion_tokens")),
        cached_tokens=response_token_count(prompt_details.get("cached_tokens")),
        reasoning_tokens=response_token_count(completion_details.get("reasoning_tokens")),
        cost=float(cost) if isinstance(cost, int | float) and math.isfinite(cost) else None,
    )


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
        self,
        model: str,
        *,
        chat_template_kwargs: Mapping[str, object] | None = None,
        **options: Any,
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

    async def request_reply(
        self,
        messages: Sequence[Message],
        tools: Sequence[JsonObject],
        max_tokens: int | None,
        history: BlockHistory,
    ) -> Reply:
        body: JsonObject = {"model": self.model, "messages": build_messages(messages)}
        if tools:
            # "auto" is OpenAI's default, but llama-cpp-python ignores tools without it.
            body |= {"tools": list(tools), "tool_choice": "auto"}

        async def post(limit: JsonObject) -> Reply:
            request = {**body, **limit, **self._request_fields()}
            return await self.client.post("/chat/completions", request, parse)

        def parse(response: JsonObject) -> Reply:
            reply = parse_reply(response, messages)
            return replace(reply, usage=self._with_cost(reply.usage))

        if max_tokens is None:
            return await post({})
        field = self._limit_field
        try:
            return await post({field: max_tokens})
        except ContextLengthExceeded:
            # Many servers reject a limit that does not fit beside the prompt. The rest of the
            # context is then shorter than the limit, so no limit is needed.
            return await post({})
        except RequestRefused as error:
            if field not in str(error):
                raise
        # The server may know the limit under the other name.
        other = _LIMIT_FIELD if field == _LEGACY_LIMIT_FIELD else _LEGACY_LIMIT_FIELD
        reply = await post({other: max_tokens})
        self._limit_field = other
        return reply
