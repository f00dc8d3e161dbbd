"""Checks on tool calls: offered, readable, fitting, answered.

A call may stand in `tool_calls`, or as text between `<tool_call>` tags.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from jsonschema.exceptions import SchemaError
from jsonschema.protocols import Validator
from jsonschema.validators import Draft202012Validator, validator_for
from referencing import Registry

from ludus.curate.lint.rows import Side, text_of
from ludus.data.tools import JsonObject, coerce

_WRITTEN = re.compile(r"<tool_call>(.*?)</tool_call>", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Call:
    """A call as a message has it."""

    name: str
    arguments: JsonObject | None
    """None where they are no JSON object."""
    identity: str | None = None


def calls_of(message: JsonObject) -> list[Call]:
    """The calls of one message, in either form. Text that is no call is none."""
    listed = message.get("tool_calls") or []
    if listed or message.get("role") != "assistant":
        return [_listed(call) for call in listed]
    found = (_parsed(words) for words in _WRITTEN.findall(text_of(message)))
    return [
        Call(call["name"], _object(call.get("arguments", {})))
        for call in found
        if isinstance(call, dict) and isinstance(call.get("name"), str)
    ]


def unreadable(side: Side) -> Iterator[str]:
    """Calls whose arguments are no JSON object, and text between call tags that is no JSON."""
    for message in _spoken(side):
        for call in calls_of(message):
            if call.arguments is None:
                yield f"the arguments of {call.name} are no JSON object"
        if not message.get("tool_calls"):
            for words in _WRITTEN.findall(text_of(message)):
                if not isinstance(_parsed(words), dict):
                    yield "what stands between <tool_call> tags is no JSON object"


def unknown(side: Side, tools: list[JsonObject] | None) -> Iterator[str]:
    """Calls to tools that are not among those that the row offers."""
    offered = {_function(tool)["name"] for tool in tools or []}
    for call in _made(side):
        if offered and call.name not in offered:
            yield f"it calls {call.name}, and offers only {', '.join(sorted(offered))}"


def without_tools(side: Side, tools: list[JsonObject] | None) -> Iterator[str]:
    """Rows with calls and no tools. Calls in text may well have their tools in text, too."""
    if not tools and any(message.get("tool_calls") for message in _spoken(side)):
        yield "it calls tools and offers none"


def broken_schemas(tools: list[JsonObject] | None) -> Iterator[str]:
    for tool in tools or []:
        if isinstance(found := _validator(_schema(tool)), str):
            yield f"the parameters of {_function(tool)['name']} are no JSON schema: {found}"


def unfit(side: Side, tools: list[JsonObject] | None) -> Iterator[tuple[bool, str]]:
    """Arguments that the tool's schema refuses, and whether they can be understood all the same:
    "41" for a number is taken by the tools of Ludus, and refused by others."""
    schemas = {_function(tool)["name"]: _schema(tool) for tool in tools or []}
    for call in _made(side):
        if call.arguments is None or call.name not in schemas:
            continue
        validator = _validator(schemas[call.name])
        if isinstance(validator, str):
            continue
        if why := _complaint(validator, call.arguments):
            meant = coerce(call.arguments, json.loads(schemas[call.name]))
            yield not _complaint(validator, meant), f"{call.name} cannot take its arguments: {why}"


def unanswered(side: Side) -> Iterator[str]:
    """Calls that the conversation goes on after without an answer to them.

    A row may end with a call: that is what it trains.
    """
    for call, answered, last in _answers(side)[0]:
        if not answered and not last:
            yield f"the call of {call.name} has no answer, and the conversation goes on"


def uncalled(side: Side) -> Iterator[str]:
    """Answers of tools that nobody called."""
    for at in _answers(side)[1]:
        yield f"message {at} is a tool's answer to no call"


def _answers(side: Side) -> tuple[list[tuple[Call, bool, bool]], list[int]]:
    """Every listed call, whether it is answered and whether it stands at the end; and the places
    of answers to nothing. Answers without an id go by order."""
    calls: list[tuple[Call, bool, bool]] = []
    stray: list[int] = []
    waiting: list[Call] = []
    end = len(side.messages)
    for at, message in enumerate([*side.messages, {"role": "end"}]):
        if message["role"] == "tool":
            identity = message.get("tool_call_id")
            found = next((c for c in waiting if identity and c.identity == identity), None)
            by_order = next((c for c in waiting if not identity or not c.identity), None)
            if (answered := found or by_order) is None:
                stray += [at] if not _in_text(side.messages[:at]) else []
            else:
                waiting.remove(answered)
                calls.append((answered, True, False))
        else:
            calls += [(call, False, at == end) for call in waiting]
            waiting = calls_of(message) if message.get("tool_calls") else []
    return calls, stray


def _in_text(before: list[JsonObject]) -> bool:
    """Whether the last assistant turn wrote its calls as text."""
    spoken = [message for message in before if message["role"] == "assistant"]
    return bool(spoken and not spoken[-1].get("tool_calls") and calls_of(spoken[-1]))


def _spoken(side: Side) -> list[JsonObject]:
    return [message for message in side.messages[side.own :] if message["role"] == "assistant"]


def _made(side: Side) -> Iterator[Call]:
    for message in _spoken(side):
        yield from calls_of(message)


def _listed(call: JsonObject) -> Call:
    function = _function(call)
    return Call(function["name"], _object(function.get("arguments", {})), call.get("id"))


def _function(value: JsonObject) -> JsonObject:
    function: JsonObject = value.get("function", value)
    return function


def _schema(tool: JsonObject) -> str:
    """As text, because that is what a cache can be kept by."""
    return json.dumps(_function(tool).get("parameters") or {}, sort_keys=True)


def _object(value: Any) -> JsonObject | None:
    parsed = _parsed(value) if isinstance(value, str) else {} if value is None else value
    return parsed if isinstance(parsed, dict) else None


def _parsed(words: str) -> Any:
    try:
        return json.loads(words)
    except ValueError:
        return None


@lru_cache(maxsize=1024)
def _validator(schema: str) -> Validator | str:
    """A validator, or what is wrong with the schema. References to other hosts are not followed."""
    parsed = json.loads(schema)
    kind = validator_for(parsed, default=Draft202012Validator)
    try:
        kind.check_schema(parsed)
    except SchemaError as error:
        return error.message
    made: Validator = kind(parsed, registry=Registry())
    return made


def _complaint(validator: Validator, arguments: JsonObject) -> str:
    try:
        first = next(iter(validator.iter_errors(arguments)), None)
    except Exception as error:  # A reference that leads nowhere.
        return str(error)
    return first.message if first is not None else ""
