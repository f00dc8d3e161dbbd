"""Convert items and tools of OpenAI's Responses API to chat messages, and back.

There a reply consists of several items: reasoning, message, and one item per call. In chat it is
one message. An item belongs to the same reply as the item before it if it can follow: reasoning
comes first, then the message, then calls. Written consecutive replies are separated by an empty
message.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

from ludus.curation.formats.base import FormatError, require_object
from ludus.curation.formats.chat_messages import parse_tools
from ludus.data.messages import ImagePart, Message, Part, Text
from ludus.data.tool_schema import JsonObject


def parse_items(value: object, name: str) -> list[JsonObject]:
    """Parse items of the Responses API. A string is a user message, and null is an empty list."""
    if value is None:
        return []
    if isinstance(value, str):
        return [{"role": "user", "content": value}]
    if not isinstance(value, list):
        raise FormatError(f"{name} is not a list")
    items = [require_object(item, f"an item of {name}") for item in value]
    for item in items:
        if not isinstance(item.get("type"), str | None):
            raise FormatError(f"the type of an item of {name} is not a name")
    return items


def to_chat_messages(items: list[JsonObject]) -> Iterator[JsonObject]:
    """Convert the Responses API's items to messages for `chat_messages.parse_messages`.

    A reply with nothing but encrypted reasoning is no message.
    """
    reply: JsonObject = {}
    for item in items:
        kind = item.get("type") or "message"
        only_reasoning = reply.keys() == {"reasoning_content"}
        follows_reasoning = kind == "reasoning" or item.get("role") == "assistant"
        if reply and kind != "function_call" and not (only_reasoning and follows_reasoning):
            yield {"role": "assistant", **reply}
            reply = {}
        if kind == "reasoning":
            # The reasoning itself, or its summary if that is all there is.
            parts = item.get("content") or item.get("summary") or []
            if not isinstance(parts, list):
                raise FormatError("the content of the reasoning is not a list")
            texts = [part.get("text") if isinstance(part, dict) else part for part in parts]
            if not all(isinstance(text, str) for text in texts):
                raise FormatError("a part of the reasoning is not text")
            if texts := [*filter(None, [reply.get("reasoning_content"), *texts])]:
                reply = {"reasoning_content": "\n\n".join(texts)}
        elif kind == "function_call":
            function = {"name": item.get("name"), "arguments": item.get("arguments")}
            call = {"id": item.get("call_id") or item.get("id"), "function": function}
            reply = {**reply, "tool_calls": [*reply.get("tool_calls", ()), call]}
        elif item.get("role") == "assistant":
            # Inputs are sometimes messages in the format of the chat API.
            names = ("tool_calls", "function_call", "name", "reasoning_content")
            chat_fields = {name: item[name] for name in names if item.get(name)}
            reply = {**reply, "content": item.get("content") or "", **chat_fields}
        elif kind == "function_call_output":
            output = item.get("output") or ""
            if not isinstance(output, str | list):
                output = json.dumps(output, ensure_ascii=False)
            fields = {"tool_call_id": item.get("call_id"), "name": item.get("name")}
            yield {"role": "tool", "content": output, **fields}
        elif kind == "message":
            yield {**item, "content": item.get("content") or ""}
        else:
            raise FormatError(f"an item of type {kind!r} is neither a message nor a tool call")
    if reply:
        yield {"role": "assistant", **reply}


def build_items(messages: Sequence[Message]) -> Iterator[JsonObject]:
    """Convert messages to items of the Responses API."""
    after_reply = False
    for at, message in enumerate(messages):
        name: JsonObject = {} if message.name is None else {"name": message.name}
        content: str | list[JsonObject]
        parts: Sequence[Part]
        if isinstance(message.content, str):
            content, parts = message.content, (Text(text=message.content),)
        else:
            parts = message.content
            content = [
                {"type": "input_image", "image_url": part.image_url.url, "detail": "auto"}
                if isinstance(part, ImagePart)
                else {"type": "input_text", "text": part.text}
                for part in parts
            ]
        if message.role == "tool":
            output = {"call_id": message.tool_call_id or "", "output": content}
            yield {**output, "type": "function_call_output", **name}
        elif message.role != "assistant":
            yield {"role": message.role, "content": content, "type": "message", **name}
        follows_reply, after_reply = after_reply, message.role == "assistant"
        if not after_reply:
            continue
        if message.reasoning_content:
            summary = {"type": "summary_text", "text": message.reasoning_content}
            yield {"id": f"rs_{at}", "summary": [summary], "type": "reasoning"}
        if message.content or message.name or follows_reply or not message.tool_calls:
            # Models do not return images: with one this is a prefilled message, as in inputs.
            item: JsonObject = {"role": "assistant", "content": content}
            texts = [part.text for part in parts if isinstance(part, Text)]
            if len(texts) == len(parts):
                out = [{"annotations": [], "text": text, "type": "output_text"} for text in texts]
                item = {"id": f"msg_{at}", "content": out, "role": "assistant"}
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


def flatten_tool(tool: JsonObject) -> JsonObject:
    """Flatten a tool for the Responses API, unless that would lose information."""
    function = tool.get("function")
    if not isinstance(function, dict):
        return tool
    # Gym rejects tools without `strict` or `parameters`.
    flat = {"parameters": None, "strict": None, **function, "type": "function"}
    return flat if parse_tools([flat]) == (tool,) else tool
