"""Checks on tool calls: offered, readable, fitting, answered. How they are written is `call`'s."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any

from jsonschema.exceptions import SchemaError
from jsonschema.protocols import Validator
from jsonschema.validators import Draft202012Validator, validator_for
from referencing import Registry

from ludus.curation.lint.call import (
    ToolCall,
    count_unparsable_calls,
    parse_calls,
    parse_json,
    unwrap_function,
)
from ludus.curation.lint.rows import Conversation
from ludus.data.tool_schema import JsonObject, coerce_arguments

_LITERALS = {"null": None, "True": True, "False": False, "None": None}
"""Values by their names; Qwen 3.5's template writes Python's, which are no JSON."""


def unreadable_calls(side: Conversation) -> Iterator[str]:
    """Calls whose arguments are no JSON object, and text between call tags that is no call."""
    for message in _assistant_messages(side):
        for call in parse_calls(message):
            if call.arguments is None:
                yield f"the arguments of {call.name} are no JSON object"
        for _ in range(count_unparsable_calls(message)):
            yield "what stands between <tool_call> tags is no call that can be read"


def unknown_tools(side: Conversation, tools: list[JsonObject] | None) -> Iterator[str]:
    """Calls to tools that are not among those that the row offers."""
    offered = {unwrap_function(tool)["name"] for tool in tools or []}
    for call in _iter_calls(side):
        if offered and call.name not in offered:
            yield f"it calls {call.name}, and offers only {', '.join(sorted(offered))}"


def calls_without_tools(side: Conversation, tools: list[JsonObject] | None) -> Iterator[str]:
    """Rows with calls and no tools. Calls in text may well have their tools in text, too."""
    if not tools and any(message.get("tool_calls") for message in _assistant_messages(side)):
        yield "it calls tools and offers none"


def invalid_schemas(tools: list[JsonObject] | None) -> Iterator[str]:
    for tool in tools or []:
        if isinstance(found := _build_validator(_schema_json(tool)), str):
            yield f"the parameters of {unwrap_function(tool)['name']} are no JSON schema: {found}"


def invalid_arguments(
    side: Conversation, tools: list[JsonObject] | None
) -> Iterator[tuple[bool, str]]:
    """Arguments that the tool's schema refuses, and whether they can be understood all the same:
    "41" for a number is taken by the tools of Ludus, and refused by others. Where all values are
    text, "41" is how a number is written."""
    schemas = {unwrap_function(tool)["name"]: _schema_json(tool) for tool in tools or []}
    for call in _iter_calls(side):
        if call.arguments is None or call.name not in schemas:
            continue
        validator = _build_validator(schemas[call.name])
        if isinstance(validator, str):
            continue
        given = _parse_values(call.arguments, validator) if call.untyped else call.arguments
        if why := _first_error(validator, given):
            meant = not _first_error(validator, _coerce_values(given, validator))
            yield meant, f"{call.name} cannot take its arguments: {why}"


def unanswered_calls(side: Conversation) -> Iterator[str]:
    """Calls that the conversation goes on after without an answer to them.

    A row may end with a call: that is what it trains.
    """
    for call, answered, last in _match_results(side)[0]:
        if not answered and not last:
            yield f"the call of {call.name} has no answer, and the conversation goes on"


def results_without_call(side: Conversation) -> Iterator[str]:
    """Answers of tools that nobody called."""
    for at in _match_results(side)[1]:
        yield f"message {at} is a tool's answer to no call"


def _match_results(side: Conversation) -> tuple[list[tuple[ToolCall, bool, bool]], list[int]]:
    """Every listed call, whether it is answered and whether it stands at the end; and the places
    of answers to nothing. Answers without an id go by order."""
    calls: list[tuple[ToolCall, bool, bool]] = []
    stray: list[int] = []
    waiting: list[ToolCall] = []
    end = len(side.messages)
    for at, message in enumerate([*side.messages, {"role": "end"}]):
        if message["role"] == "tool":
            identity = message.get("tool_call_id")
            found = next((c for c in waiting if identity and c.call_id == identity), None)
            by_order = next((c for c in waiting if not identity or not c.call_id), None)
            if (answered := found or by_order) is None:
                stray += [at] if not _last_calls_in_text(side.messages[:at]) else []
            else:
                waiting.remove(answered)
                calls.append((answered, True, False))
        else:
            calls += [(call, False, at == end) for call in waiting]
            waiting = parse_calls(message) if message.get("tool_calls") else []
    return calls, stray


def _last_calls_in_text(before: list[JsonObject]) -> bool:
    """Whether the last assistant turn wrote its calls as text."""
    spoken = [message for message in before if message["role"] == "assistant"]
    return bool(spoken and not spoken[-1].get("tool_calls") and parse_calls(spoken[-1]))


def _assistant_messages(side: Conversation) -> list[JsonObject]:
    return [
        message for message in side.messages[side.prompt_length :] if message["role"] == "assistant"
    ]


def _iter_calls(side: Conversation) -> Iterator[ToolCall]:
    for message in _assistant_messages(side):
        yield from parse_calls(message)


def _schema_json(tool: JsonObject) -> str:
    """As text, because that is what a cache can be kept by."""
    return json.dumps(unwrap_function(tool).get("parameters") or {}, sort_keys=True)


def _parse_values(arguments: JsonObject, validator: Validator) -> JsonObject:
    """Values that are text as what the schema wants them to be.

    What still does not fit is read as JSON: a schema may say what it wants by reference.
    """
    meant = _coerce_values(arguments, validator)
    try:
        paths = [error.absolute_path for error in validator.iter_errors(meant)]
    except Exception:  # A reference that leads nowhere, which `_complaint` will name.
        return meant
    return meant | {str(path[0]): _parse_value(arguments[str(path[0])]) for path in paths if path}


def _coerce_values(arguments: JsonObject, validator: Validator) -> JsonObject:
    """A schema may be plain `true`, also that of a property; then there is nothing to coerce to."""
    schema = validator.schema
    properties = schema.get("properties", {}) if isinstance(schema, Mapping) else {}
    plain = {name: kind for name, kind in properties.items() if isinstance(kind, Mapping)}
    return coerce_arguments(arguments, {"properties": plain})


def _parse_value(words: str) -> Any:
    if words in _LITERALS:
        return _LITERALS[words]
    read = parse_json(words)
    return words if read is None else read


@lru_cache(maxsize=1024)
def _build_validator(schema: str) -> Validator | str:
    """A validator, or what is wrong with the schema. References to other hosts are not followed."""
    parsed = json.loads(schema)
    kind = validator_for(parsed, default=Draft202012Validator)
    try:
        kind.check_schema(parsed)
    except SchemaError as error:
        return error.message
    made: Validator = kind(parsed, registry=Registry())
    return made


def _first_error(validator: Validator, arguments: JsonObject) -> str:
    try:
        first = next(iter(validator.iter_errors(arguments)), None)
    except Exception as error:  # A reference that leads nowhere.
        return str(error)
    return first.message if first is not None else ""
