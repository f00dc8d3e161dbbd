"""Convert chat messages and tools to the items and tools of OpenAI's Responses API.

A reply becomes several items: reasoning, message, and one item per call. Consecutive replies are
separated by an empty message.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from ludus.curation.importers.chat_messages import parse_tools
from ludus.data.content import Text
from ludus.data.messages import ImagePart, Message
from ludus.data.tool_schema import JsonObject


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
