"""Messages as OpenAI's chat API takes them, and replies as it and its many likenesses give them.

Pure functions. Servers that speak this API agree on what is asked more than on what is answered,
so reading is forgiving and writing is strict.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any

from ludus.agents.agent import FinishReason, Reply
from ludus.agents.response_errors import token_count
from ludus.agents.tool_calls import RawToolCall, parse_arguments, parse_tool_calls, sanitize_name
from ludus.data.content import Text
from ludus.data.episode import Usage
from ludus.data.messages import Call, ImagePart, Message, Part
from ludus.data.tool_schema import JsonObject
from ludus.errors import BadReply

_FINISH_REASONS = {"length": FinishReason.LENGTH, "content_filter": FinishReason.REFUSED}


def build_messages(messages: Sequence[Message]) -> list[JsonObject]:
    """What is sent. What the model thought is not: servers ignore it, or refuse it.

    Tool messages may hold no pictures, so these follow in a user's message, after the last tool
    message of the turn: the API wants all results before anything else is said.
    """
    written: list[JsonObject] = []
    pictures: list[JsonObject] = []
    for message in messages:
        if message.role == "tool":
            written.append(_build_tool_message(message))
            pictures += _image_parts(message)
            continue
        if pictures:
            written.append({"role": "user", "content": pictures})
            pictures = []
        written.append(_build_message(message))
    if pictures:
        written.append({"role": "user", "content": pictures})
    return written


def _build_message(message: Message) -> JsonObject:
    content = message.content
    written: JsonObject = {
        "role": message.role,
        "content": content if isinstance(content, str) else [_build_part(part) for part in content],
    }
    if message.name is not None:
        written["name"] = message.name
    if message.tool_calls:
        written["tool_calls"] = [_build_tool_call(call) for call in message.tool_calls]
    return written


def _build_tool_message(message: Message) -> JsonObject:
    written: JsonObject = {"role": "tool", "tool_call_id": message.tool_call_id or ""}
    if message.name is not None:
        written["name"] = message.name
    return {**written, "content": message.text}


def _image_parts(message: Message) -> list[JsonObject]:
    if isinstance(message.content, str):
        return []
    pictures = [_build_part(part) for part in message.content if isinstance(part, ImagePart)]
    if not pictures:
        return []
    whose = f"What {message.tool_call_id} shows:"
    return [{"type": "text", "text": whose}, *pictures]


def _build_part(part: Part) -> JsonObject:
    if isinstance(part, Text):
        return {"type": "text", "text": part.text}
    return {"type": "image_url", "image_url": {"url": part.image_url.url}}


def _build_tool_call(call: Call) -> JsonObject:
    arguments = call.function.arguments
    return {
        "id": call.id,
        "type": "function",
        "function": {
            "name": sanitize_name(call.function.name),
            "arguments": "{}" if parse_arguments(arguments) is None else arguments,
        },
    }


def parse_reply(body: JsonObject, messages: Sequence[Message]) -> Reply:
    """What the model said. `messages` is what it answered to: its calls are told apart by it."""
    choice = _first_choice(body)
    message = choice["message"]
    said, refusal = _content_text(message.get("content")), _content_text(message.get("refusal"))
    thought = _content_text(message.get("reasoning_content") or message.get("reasoning"))
    if not thought:
        thought, said = split_reasoning(said)
    ended = _FINISH_REASONS.get(str(choice.get("finish_reason")), FinishReason.STOP)
    answer = Message(
        role="assistant",
        content=said or refusal,
        reasoning_content=thought or None,
        tool_calls=parse_tool_calls(_raw_tool_calls(message), messages) or None,
    )
    finish = FinishReason.REFUSED if refusal else ended
    return Reply(answer, finish, parse_usage(body.get("usage")))


def _first_choice(body: JsonObject) -> JsonObject:
    choices = body.get("choices")
    choice = choices[0] if isinstance(choices, list) and choices else None
    if not isinstance(choice, dict) or not isinstance(choice.get("message"), dict):
        raise BadReply("the reply holds no message")
    if choice.get("error") or choice.get("finish_reason") == "error":
        raise BadReply(f"the reply broke off: {json.dumps(choice.get('error'))}")
    return choice


def _content_text(content: Any) -> str:
    """Text, whether it comes as such, in parts, or not at all."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        return ""
    texts = (part.get("text") for part in content if isinstance(part, dict))
    return "".join(text for text in texts if isinstance(text, str))


def split_reasoning(said: str) -> tuple[str, str]:
    """What was thought and what was said, where a server leaves the tags of a template standing.

    Templates that open the tag in the prompt leave only the closing one; a reply that was cut off
    while thinking has only the opening one.
    """
    if "<think>" not in said and "</think>" not in said:
        return "", said
    before, opening, rest = said.partition("<think>")
    if opening and before.strip():
        return "", said
    thought, closing, after = (rest if opening else said).partition("</think>")
    return thought.strip(), after.lstrip() if closing else ""


def _raw_tool_calls(message: JsonObject) -> list[RawToolCall]:
    calls = message.get("tool_calls")
    if not calls and message.get("function_call"):
        calls = [{"function": message["function_call"]}]
    found = [_dict_or_empty(call) for call in calls] if isinstance(calls, list) else []
    functions = [_dict_or_empty(call.get("function")) for call in found]
    return [
        RawToolCall(call.get("id"), function.get("name"), function.get("arguments"))
        for call, function in zip(found, functions, strict=True)
    ]


def parse_usage(usage: Any) -> Usage:
    """What was counted; zeros where nothing was. The cost is a gateway's own word."""
    usage = _dict_or_empty(usage)
    cost = usage.get("cost")
    known = isinstance(cost, int | float) and math.isfinite(cost)
    return Usage(
        prompt_tokens=token_count(usage.get("prompt_tokens")),
        completion_tokens=token_count(usage.get("completion_tokens")),
        cached_tokens=token_count(
            _dict_or_empty(usage.get("prompt_tokens_details")).get("cached_tokens")
        ),
        reasoning_tokens=token_count(
            _dict_or_empty(usage.get("completion_tokens_details")).get("reasoning_tokens")
        ),
        cost=float(cost) if known else None,
    )


def _dict_or_empty(value: Any) -> JsonObject:
    return value if isinstance(value, dict) else {}
