"""Chat messages as the items of OpenAI's Responses API.

A reply becomes several items: what was thought, what was said, each call on its own. Where two
replies follow each other, an empty message keeps them apart.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ludus.data.content import Text
from ludus.data.messages import ImagePart, Message, Part
from ludus.data.tool_schema import JsonObject


def build_items(messages: Sequence[Message]) -> Iterator[JsonObject]:
    spoke = False
    for at, message in enumerate(messages):
        if message.role == "assistant":
            yield from _reply_items(message, at, apart=spoke)
        elif message.role == "tool":
            yield _tool_output_item(message)
        else:
            yield {
                "role": message.role,
                "content": _input_content(message),
                "type": "message",
            } | _name_field(message)
        spoke = message.role == "assistant"


def _reply_items(message: Message, at: int, *, apart: bool) -> Iterator[JsonObject]:
    if message.reasoning_content:
        thought = {"type": "summary_text", "text": message.reasoning_content}
        yield {"id": f"rs_{at}", "summary": [thought], "type": "reasoning"}
    if message.content or message.name or apart or not message.tool_calls:
        yield _message_item(message, at)
    for call in message.tool_calls or ():
        yield {
            "arguments": call.function.arguments,
            "call_id": call.id,
            "name": call.function.name,
            "type": "function_call",
            "id": call.id,
            "status": "completed",
        }


def _message_item(message: Message, at: int) -> JsonObject:
    parts = [Text(text=message.content)] if isinstance(message.content, str) else message.content
    texts = [part.text for part in parts if isinstance(part, Text)]
    if len(texts) < len(parts):  # Only what was put into a model's mouth can hold a picture.
        said: JsonObject = {
            "role": "assistant",
            "content": _input_content(message),
            "type": "message",
        }
        return said | _name_field(message)
    content = [{"annotations": [], "text": text, "type": "output_text"} for text in texts]
    said = {"id": f"msg_{at}", "content": content, "role": "assistant"}
    return said | {"status": "completed", "type": "message"} | _name_field(message)


def _tool_output_item(message: Message) -> JsonObject:
    answer = {"call_id": message.tool_call_id or "", "output": _input_content(message)}
    return answer | {"type": "function_call_output"} | _name_field(message)


def _name_field(message: Message) -> JsonObject:
    return {} if message.name is None else {"name": message.name}


def _input_content(message: Message) -> str | list[JsonObject]:
    if isinstance(message.content, str):
        return message.content
    return [_input_part(part) for part in message.content]


def _input_part(part: Part) -> JsonObject:
    if isinstance(part, ImagePart):
        return {"type": "input_image", "image_url": part.image_url.url, "detail": "auto"}
    return {"type": "input_text", "text": part.text}
