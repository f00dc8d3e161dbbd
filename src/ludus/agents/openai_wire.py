"""Conversion between chat messages and OpenAI's chat completions API.

Pure functions. Compatible servers agree more on requests than on responses, so requests are built
strictly and responses parsed leniently.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any

from ludus.agents.agent import FinishReason, Reply
from ludus.agents.response_json import response_object, response_token_count
from ludus.agents.tool_calls import RawToolCall, parse_arguments, parse_tool_calls, sanitize_name
from ludus.data.episode import Usage
from ludus.data.messages import ImagePart, Message, Part, Text
from ludus.data.tool_schema import JsonObject
from ludus.errors import BadReply

_FINISH_REASONS = {"length": FinishReason.LENGTH, "content_filter": FinishReason.REFUSED}


def build_messages(messages: Sequence[Message]) -> list[JsonObject]:
    """The messages of a request, without reasoning: servers ignore or refuse it.

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
                    if parse_arguments(call.function.arguments) is not None
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
    """The model's reply to `messages`, whose call ids its own calls must not repeat."""
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
    finish_reason = _FINISH_REASONS.get(str(choice.get("finish_reason")), FinishReason.STOP)
    return Reply(
        Message(
            role="assistant",
            content=content or refusal,
            reasoning_content=reasoning or None,
            tool_calls=parse_tool_calls(_raw_tool_calls(message), messages) or None,
        ),
        FinishReason.REFUSED if refusal else finish_reason,
        parse_usage(body.get("usage")),
    )


def _content_text(content: Any) -> str:
    """Text that comes as a string, in parts, or not at all."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        return ""
    texts = (part.get("text") for part in content if isinstance(part, dict))
    return "".join(text for text in texts if isinstance(text, str))


def split_reasoning(text: str) -> tuple[str, str]:
    """Reasoning and content, for servers that leave the template's <think> tags in the text.

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


def _raw_tool_calls(message: JsonObject) -> list[RawToolCall]:
    calls = message.get("tool_calls")
    if not calls and message.get("function_call"):
        calls = [{"function": message["function_call"]}]  # OpenAI's older form.
    raw_calls = []
    for call in calls if isinstance(calls, list) else []:
        call = response_object(call)
        function = response_object(call.get("function"))
        raw_calls.append(
            RawToolCall(call.get("id"), function.get("name"), function.get("arguments"))
        )
    return raw_calls


def parse_usage(usage: Any) -> Usage:
    """Token counts, 0 where missing. Gateways also send the cost."""
    usage = response_object(usage)
    prompt_details = response_object(usage.get("prompt_tokens_details"))
    completion_details = response_object(usage.get("completion_tokens_details"))
    cost = usage.get("cost")
    is_valid_cost = isinstance(cost, int | float) and math.isfinite(cost)
    return Usage(
        prompt_tokens=response_token_count(usage.get("prompt_tokens")),
        completion_tokens=response_token_count(usage.get("completion_tokens")),
        cached_tokens=response_token_count(prompt_details.get("cached_tokens")),
        reasoning_tokens=response_token_count(completion_details.get("reasoning_tokens")),
        cost=float(cost) if is_valid_cost else None,
    )
