"""Chat messages and tools as other programs write them, brought into the one form stored here.

The differences are small and everywhere: `content` that is null or a list of parts, arguments as
an object instead of a string of JSON, calls without ids, `developer` for `system`, reasoning under
four names, tools that are flat. Nothing that was said is dropped.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any

from ludus.curation.importers.base import FormatError, parse_embedded_json, require_object
from ludus.data.content import Text
from ludus.data.messages import Call, Function, ImagePart, ImageUrl, Message, Part
from ludus.data.tool_schema import JsonObject

_ROLE_ALIASES = {
    "developer": "system",
    "function": "tool",
    # As ShareGPT has them.
    "human": "user",
    "gpt": "assistant",
    "observation": "tool",
}
_REASONING_KEYS = ("reasoning_content", "reasoning", "thinking")
_TEXT_TYPES = ("text", "input_text", "output_text", "refusal", "summary_text", "reasoning_text")


def parse_messages(values: Any, name: str = "messages") -> tuple[Message, ...]:
    """A list of messages in any of the forms that chat APIs take."""
    if not isinstance(values, list):
        raise FormatError(f"{name} is not a list")
    return tuple(link_tool_results(_parse_message(value, at) for at, value in enumerate(values)))


def parse_tools(values: Any) -> tuple[JsonObject, ...]:
    """Tools in OpenAI's chat form. Those of its Responses API, of Anthropic and MCP are flat.

    Trainers also take the whole list as a string, because tables have no columns for schemas.
    """
    if isinstance(values, str):
        values = parse_embedded_json(values, "tools")
    if values is None:
        return ()
    if not isinstance(values, list):
        raise FormatError("tools is not a list")
    return tuple(_parse_tool(require_object(value, "a tool")) for value in values)


def build_call(name: Any, arguments: Any, call_id: Any = None) -> Call:
    """A tool call; its arguments are kept as they were written, also where they are no JSON."""
    if not isinstance(name, str):
        raise FormatError("a tool call has no name")
    written = arguments if isinstance(arguments, str) else dump_json(arguments or {})
    return Call(id=str(call_id or ""), function=Function(name=name, arguments=written))


def parse_content(value: Any) -> str | tuple[Part, ...]:
    """What a message says: words alone become a string, pictures keep their place among them."""
    if value is None or value == []:
        return ""
    if isinstance(value, str):
        return value
    parts = [_parse_part(part) for part in (value if isinstance(value, list) else [value])]
    match parts:
        case [Text(text=words)]:
            return words
    return tuple(parts)


def link_tool_results(messages: Iterable[Message]) -> Iterator[Message]:
    """Every call with an id, and every tool's answer with the id of the call that it answers.

    Where a file has no ids, answers belong to the calls before them in the order of the calls.
    """
    waiting: list[Call] = []
    for at, message in enumerate(messages):
        if message.tool_calls:
            calls = tuple(
                call if call.id else call.model_copy(update={"id": f"call_{at}_{number}"})
                for number, call in enumerate(message.tool_calls)
            )
            waiting = list(calls)
            yield message.model_copy(update={"tool_calls": calls})
        elif message.role == "tool":
            known = next((call for call in waiting if call.id == message.tool_call_id), None)
            answered = known or (waiting[0] if waiting and not message.tool_call_id else None)
            if answered is not None:
                waiting.remove(answered)
                message = message.model_copy(update={"tool_call_id": answered.id})
            yield message
        else:
            yield message


def dump_json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _parse_message(value: Any, at: int) -> Message:
    fields = require_object(value, f"message {at}")
    role = fields.get("role", fields.get("from"))
    thought = next((fields[name] for name in _REASONING_KEYS if fields.get(name)), None)
    return Message.model_validate(
        {
            "role": _ROLE_ALIASES.get(str(role), role),
            "content": parse_content(fields.get("content", fields.get("value"))),
            "reasoning_content": _plain_text(thought) if thought is not None else None,
            "tool_calls": tuple(_parse_calls(fields)) or None,
            "tool_call_id": fields.get("tool_call_id"),
            "name": fields.get("name"),
        }
    )


def _parse_calls(fields: JsonObject) -> Iterator[Call]:
    calls = fields.get("tool_calls") or []
    if fields.get("function_call"):
        calls = [{"function": fields["function_call"]}]
    if not isinstance(calls, list):
        raise FormatError("tool_calls is not a list")
    for value in calls:
        if isinstance(value, str):  # A JSON object that was written into a string.
            value = parse_embedded_json(value, "a tool call")
        call = require_object(value, "a tool call")
        function = call.get("function", call)
        if isinstance(function, str):
            function = {"name": function, "arguments": call.get("arguments")}
        function = require_object(function, "the function of a tool call")
        yield build_call(function.get("name"), function.get("arguments"), call.get("id"))


def _parse_part(value: Any) -> Text | ImagePart:
    if isinstance(value, str):
        return Text(text=value)
    part = require_object(value, "a part of a message")
    kind = part.get("type")
    if kind in _TEXT_TYPES or kind is None:
        words = part.get("text", part.get("refusal"))
        if isinstance(words, str):
            return Text(text=words)
    image = part.get("image_url", part.get("image"))
    if image is not None:
        address = image.get("url") if isinstance(image, dict) else image
        if isinstance(address, str):
            return ImagePart(image_url=ImageUrl(url=address))
    raise FormatError(f"a part of type {kind!r} is neither text nor an image")


def _plain_text(value: Any) -> str:
    content = parse_content(value)
    if isinstance(content, str):
        return content
    return "\n".join(part.text for part in content if isinstance(part, Text))


def _parse_tool(value: JsonObject) -> JsonObject:
    function, kind = value.get("function"), value.get("type", "function")
    named = function if isinstance(function, dict) else value
    if not isinstance(named.get("name"), str):
        # A tool of the provider's own: no chat template could offer it to a student.
        raise FormatError(f"a tool of type {kind!r} has no name")
    if named is function:
        return {**value, "type": kind}
    schema = value.get("parameters", value.get("input_schema", value.get("inputSchema")))
    made: JsonObject = {"name": value["name"], "description": value.get("description") or ""}
    made["parameters"] = schema or {"type": "object", "properties": {}}
    if value.get("strict") is not None:
        made["strict"] = value["strict"]
    return {"type": "function", "function": made}
