"""Convert items and tools of OpenAI's Responses API to chat messages, and back.

There a reply consists of several items: reasoning, message, and one item per call. In chat it is
one message. An item belongs to the same reply as the item before it if it can follow: reasoning
comes first, then the message, then calls. Written consecutive replies are separated by an empty
message.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from ludus.curation.importers.base import FormatError, as_object, require_object
from ludus.curation.importers.chat_messages import parse_tools
from ludus.data.episode import Usage
from ludus.data.messages import ImagePart, Message, Text
from ludus.data.tool_schema import JsonObject

_ARGUMENTS_KEY_BY_CALL_TYPE = {
    "function_call": "arguments",
    "custom_tool_call": "input",
    "mcp_call": "arguments",
}
_OUTPUT_TYPES = ("function_call_output", "custom_tool_call_output")
_MODEL_TYPES = (*_ARGUMENTS_KEY_BY_CALL_TYPE, "reasoning")
_TOKEN_FIELDS = (
    "prompt_token_ids",
    "generation_token_ids",
    "generation_log_probs",
    "routed_experts",
)
_VOLATILE_FIELDS = ("id", "status", "phase", "type", *_TOKEN_FIELDS)


def parse_items(value: Any, name: str) -> list[JsonObject]:
    """Parse a list of items. A string is a user message, and null is an empty list."""
    if value is None:
        return []
    if isinstance(value, str):
        return [{"role": "user", "content": value}]
    if not isinstance(value, list):
        raise FormatError(f"{name} is not a list")
    items = [require_object(item, f"an item of {name}") for item in value]
    for item in items:
        if not isinstance(item.get("type"), str | None):
            raise FormatError.wrong_type(f"the type of an item of {name}", item["type"], "a name")
    return items


def iter_new_items(given: list[JsonObject], output: Any) -> Iterator[list[JsonObject]]:
    """Yield the new items of an output, for each call of the model.

    Some environments write a list of lists: after each call, the whole conversation so far. Only
    the items that were not there before are yielded. An observation that the environment hides
    later is kept as the model saw it first.
    """
    nested = isinstance(output, list) and any(isinstance(part, list) for part in output)
    seen: list[JsonObject] = []
    for part in output if nested else [output]:
        items = parse_items(part, "output")
        known = next((old for old in ([*given, *seen], seen) if _is_continuation(items, old)), [])
        yield items[len(known) :]
        seen += items[len(known) :]


def to_chat_messages(items: list[JsonObject]) -> Iterator[JsonObject]:
    """Convert items to messages for `chat_messages.parse_messages`."""
    reply: JsonObject = {}
    for item in items:
        kind = item.get("type") or "message"
        continues_reply = _is_model_item(item) and (
            kind in _ARGUMENTS_KEY_BY_CALL_TYPE or reply.keys() == {"reasoning"}
        )
        if not continues_reply:
            yield from _finish_reply(reply)
            reply = {}
        if _is_model_item(item):
            reply = _extend_reply(reply, item)
        elif kind in _OUTPUT_TYPES:
            yield _tool_message(item.get("call_id"), item.get("output"), item.get("name"))
        elif kind == "message":
            yield {**item, "content": item.get("content") or ""}
        else:
            raise FormatError(f"an item of type {kind!r} is neither a message nor a tool call")
        if kind == "mcp_call":  # The provider ran the tool, and the item has its result.
            yield from _finish_reply(reply)
            reply = {}
            result = item.get("output")
            content = item.get("error") if result is None else result
            yield _tool_message(item.get("call_id") or item.get("id"), content, item.get("name"))
    yield from _finish_reply(reply)


def parse_response_usage(value: Any) -> Usage:
    """Parse the token counts of a response."""
    usage = as_object(value)
    inputs = as_object(usage.get("input_tokens_details"))
    outputs = as_object(usage.get("output_tokens_details"))
    return Usage(
        prompt_tokens=usage.get("input_tokens") or 0,
        completion_tokens=usage.get("output_tokens") or 0,
        cached_tokens=inputs.get("cached_tokens") or 0,
        reasoning_tokens=outputs.get("reasoning_tokens") or 0,
    )


def _extend_reply(reply: JsonObject, item: JsonObject) -> JsonObject:
    kind = item.get("type")
    if kind == "reasoning":
        texts = list(reply.get("reasoning", ()))
        # The reasoning itself, or its summary if that is all there is.
        parts = item.get("content") or item.get("summary") or []
        if not isinstance(parts, list):
            raise FormatError.wrong_type("the content of the reasoning", parts, "a list")
        for part in parts:
            text = part.get("text") if isinstance(part, dict) else part
            if not isinstance(text, str):
                raise FormatError("a part of the reasoning is not text")
            if text:
                texts.append(text)
        return {"reasoning": texts}
    if kind in _ARGUMENTS_KEY_BY_CALL_TYPE:
        function = {
            "name": item.get("name"),
            "arguments": item.get(_ARGUMENTS_KEY_BY_CALL_TYPE[kind]),
        }
        call = {"id": item.get("call_id") or item.get("id"), "function": function}
        return {**reply, "tool_calls": [*reply.get("tool_calls", ()), call]}
    # Inputs are sometimes messages in the format of the chat API.
    names = ("tool_calls", "function_call", "name", "reasoning_content")
    chat_fields = {name: item[name] for name in names if item.get(name)}
    return {**reply, "content": item.get("content") or "", **chat_fields}


def _finish_reply(reply: JsonObject) -> Iterator[JsonObject]:
    """Yield the message of a reply, unless it has only reasoning without text."""
    reasoning = "\n\n".join(reply.get("reasoning", ()))
    message = {name: value for name, value in reply.items() if name != "reasoning"}
    if reasoning:
        message["reasoning_content"] = reasoning
    if message:
        yield {"role": "assistant", **message}


def _tool_message(call_id: Any, output: Any, name: Any) -> JsonObject:
    is_content = output is None or isinstance(output, str | list)
    content = (output or "") if is_content else json.dumps(output, ensure_ascii=False)
    return {"role": "tool", "tool_call_id": call_id, "content": content, "name": name}


def _is_continuation(items: list[JsonObject], old: list[JsonObject]) -> bool:
    """Whether `items` begins with `old`.

    The items of the model must be equal. Observations may have been hidden since, but only if there
    are items of the model that show that this is the same conversation.
    """
    pairs = list(zip(old, items, strict=False))
    if not old or len(pairs) < len(old):
        return False
    by_model = [_item_identity(a) == _item_identity(b) for a, b in pairs if _is_model_item(a)]
    if any(by_model):
        return all(by_model) and all(
            _responses_item_key(a) == _responses_item_key(b) for a, b in pairs
        )
    return all(_item_identity(a) == _item_identity(b) for a, b in pairs)


def _is_model_item(item: JsonObject) -> bool:
    return item.get("type") in _MODEL_TYPES or item.get("role") == "assistant"


def _responses_item_key(item: JsonObject) -> tuple[Any, ...]:
    """Return what an item of the Responses API keeps when its content is hidden."""
    return item.get("type") or "message", item.get("role"), item.get("call_id")


def _item_identity(item: JsonObject) -> Any:
    fields = {name: value for name, value in item.items() if name not in _VOLATILE_FIELDS}
    return _responses_item_key(item), fields


def build_items(messages: Sequence[Message]) -> Iterator[JsonObject]:
    after_reply = False
    for at, message in enumerate(messages):
        name: JsonObject = {} if message.name is None else {"name": message.name}
        content = _input_content(message)
        if message.role == "assistant":
            yield from _reply_items(message, at, separate=after_reply)
        elif message.role == "tool":
            output = {"call_id": message.tool_call_id or "", "output": content}
            yield {**output, "type": "function_call_output", **name}
        else:
            yield {"role": message.role, "content": content, "type": "message", **name}
        after_reply = message.role == "assistant"


def flatten_tool(tool: JsonObject) -> JsonObject:
    """Flatten a tool for the Responses API, unless that would lose information."""
    function: Any = tool.get("function")
    if not isinstance(function, dict):
        return tool
    # Gym rejects tools without `strict` or `parameters`.
    flat = {"parameters": None, "strict": None, **function, "type": "function"}
    return flat if parse_tools([flat]) == (tool,) else tool


def _reply_items(message: Message, at: int, *, separate: bool) -> Iterator[JsonObject]:
    if message.reasoning_content:
        summary = {"type": "summary_text", "text": message.reasoning_content}
        yield {"id": f"rs_{at}", "summary": [summary], "type": "reasoning"}
    if message.content or message.name or separate or not message.tool_calls:
        name: JsonObject = {} if message.name is None else {"name": message.name}
        content = message.content
        parts = [Text(text=content)] if isinstance(content, str) else content
        texts = [part.text for part in parts if isinstance(part, Text)]
        if len(texts) < len(parts):
            # Models do not return images: this is a prefilled message, in the format of inputs.
            item: JsonObject = {"role": "assistant", "content": _input_content(message)}
        else:
            outputs = [{"annotations": [], "text": text, "type": "output_text"} for text in texts]
            item = {"id": f"msg_{at}", "content": outputs, "role": "assistant"}
            item["status"] = "completed"
        yield {**item, "type": "message", **name}
    for call in message.tool_calls or ():
        yield {
            "arguments": call.function.arguments,
            "call_id": call.id,
            "name": call.function.name,
            "type": "function_call",
            "id": call.id,
            "status": "completed",
        }


def _input_content(message: Message) -> str | list[JsonObject]:
    if isinstance(message.content, str):
        return message.content
    return [
        {"type": "input_image", "image_url": part.image_url.url, "detail": "auto"}
        if isinstance(part, ImagePart)
        else {"type": "input_text", "text": part.text}
        for part in message.content
    ]
