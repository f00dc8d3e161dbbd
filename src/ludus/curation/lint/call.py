"""A tool call as a message has it: listed in `tool_calls`, or written into the text.

The text forms are those of `ludus.curation.tool_call_text`. Whether a call is any good is `calls`' business.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ludus.curation.lint.rows import message_text
from ludus.data.tool_schema import JsonObject

_TOOL_CALL_TAG = re.compile(r"<tool_call>(.*?)</tool_call>", re.DOTALL)
_XML_FUNCTION = re.compile(r"<function=([^<>\n]+)>(.*)</function>", re.DOTALL)
_XML_PARAMETER = re.compile(r"<parameter=([^<>\n]+)>\n?(.*?)\n?</parameter>", re.DOTALL)
_GLM_CALL = re.compile(r"((?=[\d.:/-]*+[^\W\d])[\w.:/-]++)\s*+(<arg_key>.*)?", re.DOTALL)
_GLM_ARGUMENT = re.compile(r"<arg_key>(.*?)</arg_key>\s*<arg_value>(.*?)</arg_value>", re.DOTALL)
_BARE_CALL_KEYS = ({"name", "parameters"}, {"type", "name", "parameters"})


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One call of one tool."""

    name: str
    arguments: JsonObject | None
    """None where they are no JSON object."""
    call_id: str | None = None
    untyped: bool = False
    """Whether the values are text, of which only the tool's schema says what they mean."""


def parse_calls(message: JsonObject) -> list[ToolCall]:
    """The calls of one message, in any form. Text that is no call is none."""
    listed = message.get("tool_calls") or []
    if listed or message.get("role") != "assistant":
        return [_parse_listed_call(call) for call in listed]
    text = message_text(message)
    if tagged := _TOOL_CALL_TAG.findall(text):
        return [call for body in tagged if (call := _parse_tagged_call(body)) is not None]
    return _parse_trailing_calls(text)


def count_unparsable_calls(message: JsonObject) -> int:
    """How often a message has something between call tags that no form of call is written like."""
    if message.get("tool_calls"):
        return 0
    return sum(
        _parse_tagged_call(body) is None for body in _TOOL_CALL_TAG.findall(message_text(message))
    )


def unwrap_function(value: JsonObject) -> JsonObject:
    """What is inside a call's or a tool's wrapper, where it has one."""
    function: JsonObject = value.get("function", value)
    return function


def parse_json(words: str) -> Any:
    """What the words say as JSON; None where they are none."""
    try:
        return json.loads(words)
    except (ValueError, RecursionError):
        return None


def _parse_listed_call(call: JsonObject) -> ToolCall:
    function = unwrap_function(call)
    return ToolCall(function["name"], _parse_object(function.get("arguments", {})), call.get("id"))


def _parse_tagged_call(body: str) -> ToolCall | None:
    """JSON as Qwen 3 writes it, elements as Qwen 3.5 does, or keys and values as GLM does."""
    body = body.strip()
    if found := _XML_FUNCTION.fullmatch(body):
        return _parse_untyped_call(found[1], _XML_PARAMETER, found[2])
    if found := _GLM_CALL.fullmatch(body):
        return _parse_untyped_call(found[1], _GLM_ARGUMENT, found[2] or "")
    call = parse_json(body)
    if not isinstance(call, dict) or not isinstance(call.get("name"), str):
        return None
    return ToolCall(call["name"], _parse_object(call.get("arguments", {})))


def _parse_untyped_call(name: str, entry: re.Pattern[str], entries: str) -> ToolCall | None:
    """A call of which nothing but entries is left; None where something else stands there too."""
    if entry.sub("", entries).strip():
        return None
    return ToolCall(name, dict(entry.findall(entries)), untyped=True)


def _parse_trailing_calls(text: str) -> list[ToolCall]:
    """The calls that a text ends with, as Llama writes them: bare JSON, after words or alone."""
    words = text.rpartition("</think>")[2].strip()
    if (whole := _parse_bare_call(words)) is not None:
        return [whole]
    return list(_trailing_line_calls(words))[::-1]


def _trailing_line_calls(words: str) -> Iterator[ToolCall]:
    for line in reversed(words.splitlines()):
        if (call := _parse_bare_call(line.strip())) is None:
            return
        yield call


def _parse_bare_call(words: str) -> ToolCall | None:
    """Only what has a call's keys and no others, because a model may also answer in JSON."""
    call = parse_json(words) if words.startswith("{") and words.endswith("}") else None
    if not isinstance(call, dict) or set(call) not in _BARE_CALL_KEYS:
        return None
    name, parameters = call["name"], call["parameters"]
    return (
        ToolCall(name, parameters)
        if isinstance(name, str) and isinstance(parameters, dict)
        else None
    )


def _parse_object(value: Any) -> JsonObject | None:
    parsed = parse_json(value) if isinstance(value, str) else {} if value is None else value
    return parsed if isinstance(parsed, dict) else None
