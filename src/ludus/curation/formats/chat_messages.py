"""Parse chat messages and tools in the variants that other tools write.

Variants: `content` that is null or a list of parts, arguments as an object instead of a JSON
string, calls without ids, `developer` for `system`, several names for reasoning, and flat tools.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator

from pydantic_core import from_json

from ludus.curation.formats.base import FormatError, require_object
from ludus.data.messages import Call, Function, ImagePart, ImageUrl, Message, Part, Text
from ludus.data.tool_schema import JsonObject

_ROLE_ALIASES = {
    "developer": "system",
    "function": "tool",
    # ShareGPT.
    "human": "user",
    "gpt": "assistant",
    "observation": "tool",
}
_REASONING_KEYS = ("reasoning_content", "reasoning", "thinking")
_TEXT_TYPES = ("text", "input_text", "output_text", "refusal", "summary_text", "reasoning_text")


def parse_messages(values: object, name: str = "messages") -> tuple[Message, ...]:
    """Parse a list of chat messages in any of the supported variants."""
    if not isinstance(values, list):
        raise FormatError(f"{name} is not a list")
    messages = []
    for at, value in enumerate(values):
        fields = require_object(value, f"message {at}")
        role = fields.get("role", fields.get("from"))
        reasoning = next((fields[key] for key in _REASONING_KEYS if fields.get(key)), None)
        if reasoning is not None:
            reasoning = parse_content(reasoning)
            if not isinstance(reasoning, str):
                reasoning = "\n".join(part.text for part in reasoning if isinstance(part, Text))
        message = {
            "role": _ROLE_ALIASES.get(str(role), role),
            "content": parse_content(fields.get("content", fields.get("value"))),
            "reasoning_content": reasoning,
            "tool_calls": tuple(_parse_chat_calls(fields)) or None,
            "tool_call_id": fields.get("tool_call_id"),
            "name": fields.get("name"),
        }
        messages.append(Message.model_validate(message))
    return tuple(_link_chat_tool_results(messages))


def wrap_content(value: object, role: str) -> list[object]:
    """Return a list of chat messages; any other value becomes the content of one."""
    return value if isinstance(value, list) else [{"role": role, "content": value}]


def parse_tools(values: object) -> tuple[JsonObject, ...]:
    """Convert tools to OpenAI's chat format. The Responses API, Anthropic and MCP have flat tools.

    The whole list may be a JSON string, as some trainers accept it.
    """
    if isinstance(values, str):
        values = _parse_json(values, "tools")
    if values is None:
        return ()
    if not isinstance(values, list):
        raise FormatError("tools is not a list")
    tools: list[JsonObject] = []
    for value in values:
        tool = require_object(value, "a tool")
        function, kind = tool.get("function"), tool.get("type", "function")
        definition = function if isinstance(function, dict) else tool
        if not isinstance(definition.get("name"), str):
            # A built-in tool of the provider, which no chat template can offer to a student.
            raise FormatError(f"a tool of type {kind!r} has no name")
        if definition is function:
            tools.append({**tool, "type": kind})
            continue
        schema = tool.get("parameters", tool.get("input_schema", tool.get("inputSchema")))
        nested: JsonObject = {"name": tool["name"], "description": tool.get("description") or ""}
        nested["parameters"] = schema or {"type": "object", "properties": {}}
        if tool.get("strict") is not None:
            nested["strict"] = tool["strict"]
        tools.append({"type": "function", "function": nested})
    return tuple(tools)


def _parse_json(text: str, name: str) -> object:
    try:
        value: object = from_json(text)
    except ValueError:
        raise FormatError(f"{name} is a string that is not JSON") from None
    return value


def parse_content(value: object) -> str | tuple[Part, ...]:
    """Parse the content of a chat message: a string, or a list of parts if it has images."""
    if value is None or value == []:
        return ""
    if isinstance(value, str):
        return value
    parts: list[Part] = []
    for item in value if isinstance(value, list) else [value]:
        if isinstance(item, str):
            parts.append(Text(text=item))
            continue
        part = require_object(item, "a part of a message")
        kind = part.get("type")
        is_text = kind in _TEXT_TYPES or kind is None
        text = part.get("text", part.get("refusal")) if is_text else None
        image = part.get("image_url", part.get("image"))
        url = image.get("url") if isinstance(image, dict) else image
        if isinstance(text, str):
            parts.append(Text(text=text))
        elif isinstance(url, str):
            parts.append(ImagePart(image_url=ImageUrl(url=url)))
        else:
            raise FormatError(f"a part of type {kind!r} is neither text nor an image")
    match parts:
        case [Text(text=text)]:
            return text
    return tuple(parts)


def _link_chat_tool_results(messages: Iterable[Message]) -> Iterator[Message]:
    """Give every call of a chat an id, and every tool result the id of its call.

    Without ids, results belong to the preceding calls in their order.
    """
    pending: list[Call] = []
    for at, message in enumerate(messages):
        if message.tool_calls:
            calls = tuple(
                call if call.id else call.model_copy(update={"id": f"call_{at}_{number}"})
                for number, call in enumerate(message.tool_calls)
            )
            pending = list(calls)
            yield message.model_copy(update={"tool_calls": calls})
        elif message.role == "tool":
            by_id = next((call for call in pending if call.id == message.tool_call_id), None)
            call = by_id or (pending[0] if pending and not message.tool_call_id else None)
            if call is not None:
                pending.remove(call)
                message = message.model_copy(update={"tool_call_id": call.id})
            yield message
        else:
            yield message


def _parse_chat_calls(fields: JsonObject) -> Iterator[Call]:
    """Parse the tool calls of a chat message, in any variant."""
    calls = fields.get("tool_calls") or []
    if fields.get("function_call"):
        calls = [{"function": fields["function_call"]}]
    if not isinstance(calls, list):
        raise FormatError("tool_calls is not a list")
    for value in calls:
        if isinstance(value, str):  # A JSON object inside a string.
            value = _parse_json(value, "a tool call")
        call = require_object(value, "a tool call")
        function = call.get("function", call)
        function = require_object(function, "the function of a tool call")
        name, arguments = function.get("name"), function.get("arguments")
        if not isinstance(name, str):
            raise FormatError("a tool call has no name")
        # A string of arguments is kept, even if it is not JSON.
        text = (
            arguments
            if isinstance(arguments, str)
            else json.dumps(arguments or {}, ensure_ascii=False)
        )
        yield Call(id=str(call.get("id") or ""), function=Function(name=name, arguments=text))
