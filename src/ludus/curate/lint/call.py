"""A tool call as a message has it: listed in `tool_calls`, or written into the text.

The text forms are those of `ludus.curate.render`. Whether a call is any good is `calls`' business.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ludus.curate.lint.rows import text_of
from ludus.data.tools import JsonObject

_TAGGED = re.compile(r"<tool_call>(.*?)</tool_call>", re.DOTALL)
_FUNCTION = re.compile(r"<function=([^<>\n]+)>(.*)</function>", re.DOTALL)
_PARAMETER = re.compile(r"<parameter=([^<>\n]+)>\n?(.*?)\n?</parameter>", re.DOTALL)
_NAMED = re.compile(r"((?=[\d.:/-]*+[^\W\d])[\w.:/-]++)\s*+(<arg_key>.*)?", re.DOTALL)
_PAIR = re.compile(r"<arg_key>(.*?)</arg_key>\s*<arg_value>(.*?)</arg_value>", re.DOTALL)
_BARE = ({"name", "parameters"}, {"type", "name", "parameters"})


@dataclass(frozen=True, slots=True)
class Call:
    """One call of one tool."""

    name: str
    arguments: JsonObject | None
    """None where they are no JSON object."""
    identity: str | None = None
    untyped: bool = False
    """Whether the values are text, of which only the tool's schema says what they mean."""


def calls_of(message: JsonObject) -> list[Call]:
    """The calls of one message, in any form. Text that is no call is none."""
    listed = message.get("tool_calls") or []
    if listed or message.get("role") != "assistant":
        return [_listed(call) for call in listed]
    text = text_of(message)
    if tagged := _TAGGED.findall(text):
        return [call for body in tagged if (call := _in_tags(body)) is not None]
    return _at_the_end(text)


def not_calls(message: JsonObject) -> int:
    """How often a message has something between call tags that no form of call is written like."""
    if message.get("tool_calls"):
        return 0
    return sum(_in_tags(body) is None for body in _TAGGED.findall(text_of(message)))


def function_of(value: JsonObject) -> JsonObject:
    """What is inside a call's or a tool's wrapper, where it has one."""
    function: JsonObject = value.get("function", value)
    return function


def json_in(words: str) -> Any:
    """What the words say as JSON; None where they are none."""
    try:
        return json.loads(words)
    except (ValueError, RecursionError):
        return None


def _listed(call: JsonObject) -> Call:
    function = function_of(call)
    return Call(function["name"], _parse_object(function.get("arguments", {})), call.get("id"))


def _in_tags(body: str) -> Call | None:
    """JSON as Qwen 3 writes it, elements as Qwen 3.5 does, or keys and values as GLM does."""
    body = body.strip()
    if found := _FUNCTION.fullmatch(body):
        return _untyped(found[1], _PARAMETER, found[2])
    if found := _NAMED.fullmatch(body):
        return _untyped(found[1], _PAIR, found[2] or "")
    call = json_in(body)
    if not isinstance(call, dict) or not isinstance(call.get("name"), str):
        return None
    return Call(call["name"], _parse_object(call.get("arguments", {})))


def _untyped(name: str, entry: re.Pattern[str], entries: str) -> Call | None:
    """A call of which nothing but entries is left; None where something else stands there too."""
    if entry.sub("", entries).strip():
        return None
    return Call(name, dict(entry.findall(entries)), untyped=True)


def _at_the_end(text: str) -> list[Call]:
    """The calls that a text ends with, as Llama writes them: bare JSON, after words or alone."""
    words = text.rpartition("</think>")[2].strip()
    if (whole := _bare(words)) is not None:
        return [whole]
    return list(_last_lines(words))[::-1]


def _last_lines(words: str) -> Iterator[Call]:
    for line in reversed(words.splitlines()):
        if (call := _bare(line.strip())) is None:
            return
        yield call


def _bare(words: str) -> Call | None:
    """Only what has a call's keys and no others, because a model may also answer in JSON."""
    call = json_in(words) if words.startswith("{") and words.endswith("}") else None
    if not isinstance(call, dict) or set(call) not in _BARE:
        return None
    name, parameters = call["name"], call["parameters"]
    return (
        Call(name, parameters) if isinstance(name, str) and isinstance(parameters, dict) else None
    )


def _parse_object(value: Any) -> JsonObject | None:
    parsed = json_in(value) if isinstance(value, str) else {} if value is None else value
    return parsed if isinstance(parsed, dict) else None
