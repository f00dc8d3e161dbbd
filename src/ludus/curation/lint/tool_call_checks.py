"""Checks of tool calls that need no chat template: names, arguments, schemas and results.

Every check yields one message per problem that it finds.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from functools import lru_cache

from jsonschema.exceptions import SchemaError
from jsonschema.protocols import Validator
from jsonschema.validators import Draft202012Validator, validator_for
from referencing import Registry

from ludus.curation.tool_call_text import (
    ParsedCall,
    count_unparsable_calls,
    parse_call_json,
    parse_tool_calls,
)
from ludus.data.tool_schema import JsonObject, coerce_arguments
from ludus.data.training_row import RowConversation

_LITERALS = {"null": None, "True": True, "False": False, "None": None}
"""Qwen 3.5's template writes Python's literals, which are not JSON."""


def unreadable_calls(conversation: RowConversation) -> Iterator[str]:
    for message in conversation.replies:
        for call in parse_tool_calls(message):
            if call.arguments is None:
                yield f"the arguments of {call.name} are not a JSON object"
        for _ in range(count_unparsable_calls(message)):
            yield "the text between <tool_call> tags is not a call in any known form"


def unknown_tools(conversation: RowConversation, tools: list[JsonObject] | None) -> Iterator[str]:
    """Calls of tools that are not in `tools`, if the row has any."""
    offered = {_offered_function(tool)["name"] for tool in tools or []}
    for call in _iter_calls(conversation):
        if offered and call.name not in offered:
            yield f"it calls {call.name}, but offers only {', '.join(sorted(offered))}"


def calls_without_tools(
    conversation: RowConversation, tools: list[JsonObject] | None
) -> Iterator[str]:
    """Rows with `tool_calls` and no tools. Calls in text may have their tools in text too."""
    if not tools and any(message.get("tool_calls") for message in conversation.replies):
        yield "it calls tools but offers none"


def invalid_schemas(tools: list[JsonObject] | None) -> Iterator[str]:
    for tool in tools or []:
        if isinstance(error := _build_call_validator(_schema_json(tool)), str):
            name = _offered_function(tool)["name"]
            yield f"the parameters of {name} are not a valid JSON schema: {error}"


def invalid_arguments(
    conversation: RowConversation, tools: list[JsonObject] | None
) -> Iterator[tuple[bool, str]]:
    """Arguments that violate the tool's schema, and whether coercion would make them valid.

    Ludus' tools accept "41" for a number, other tools may not. In forms of calls whose values are
    all text, "41" is how a number is written, and is no problem.
    """
    schemas = {_offered_function(tool)["name"]: _schema_json(tool) for tool in tools or []}
    for call in _iter_calls(conversation):
        if call.arguments is None or call.name not in schemas:
            continue
        validator = _build_call_validator(schemas[call.name])
        if isinstance(validator, str):
            continue
        arguments = (
            _parse_untyped_arguments(call.arguments, validator) if call.untyped else call.arguments
        )
        if error := _first_error(validator, arguments):
            coercible = not _first_error(validator, _coerce_call_arguments(arguments, validator))
            yield coercible, f"{call.name} does not accept its arguments: {error}"


def unanswered_calls(conversation: RowConversation) -> Iterator[str]:
    """Calls without a result that are not at the end: a row may end with a call to train it."""
    for call, is_answered, is_last in _match_results(conversation)[0]:
        if not is_answered and not is_last:
            yield f"the call of {call.name} has no result, but the conversation continues"


def results_without_call(conversation: RowConversation) -> Iterator[str]:
    """Tool results that no tool call before them asked for."""
    for at in _match_results(conversation)[1]:
        yield f"message {at} is a tool result without a call"


def _match_results(
    conversation: RowConversation,
) -> tuple[list[tuple[ParsedCall, bool, bool]], list[int]]:
    """Match tool results to the calls in `tool_calls`, by id or else in order.

    Returns every call with whether it has a result and whether it is at the end of the
    conversation, and the positions of results without a call.
    """
    calls: list[tuple[ParsedCall, bool, bool]] = []
    unmatched: list[int] = []
    pending: list[ParsedCall] = []
    calls_in_text = False
    end = len(conversation.messages)
    for at, message in enumerate([*conversation.messages, {"role": "end"}]):
        if message["role"] == "tool":
            call_id = message.get("tool_call_id")
            by_id = next((c for c in pending if call_id and c.call_id == call_id), None)
            by_order = next((c for c in pending if not call_id or not c.call_id), None)
            call = by_id or by_order
            if call is not None:
                pending.remove(call)
                calls.append((call, True, False))
            elif not calls_in_text:
                unmatched.append(at)
        else:
            calls += [(call, False, at == end) for call in pending]
            pending = parse_tool_calls(message) if message.get("tool_calls") else []
            if message["role"] == "assistant":
                calls_in_text = not pending and bool(parse_tool_calls(message))
    return calls, unmatched


def _iter_calls(conversation: RowConversation) -> Iterator[ParsedCall]:
    for message in conversation.replies:
        yield from parse_tool_calls(message)


def _offered_function(tool: JsonObject) -> JsonObject:
    """Return the definition of a tool that calls can use, whether it is nested or flat."""
    function: JsonObject = tool.get("function", tool)
    return function


def _schema_json(tool: JsonObject) -> str:
    """Return the schema of a tool's parameters as text, which can be a cache key."""
    return json.dumps(_offered_function(tool).get("parameters") or {}, sort_keys=True)


def _parse_untyped_arguments(arguments: JsonObject, validator: Validator) -> JsonObject:
    """Convert the arguments of a call whose values are all text to the types of the schema.

    What is still invalid is parsed as JSON, because the type may be given by a `$ref`.
    """
    coerced = _coerce_call_arguments(arguments, validator)
    try:
        paths = [error.absolute_path for error in validator.iter_errors(coerced)]
    except Exception:  # An unresolvable reference, which `_first_error` reports.
        return coerced
    values = dict(coerced)
    for name in (str(path[0]) for path in paths if path):
        text = arguments[name]
        value = parse_call_json(text)
        values[name] = _LITERALS.get(text, text if value is None else value)
    return values


def _coerce_call_arguments(arguments: JsonObject, validator: Validator) -> JsonObject:
    """Coerce the arguments of a call to its schema, which may be plain `true`, in parts too."""
    schema = validator.schema
    properties = schema.get("properties", {}) if isinstance(schema, Mapping) else {}
    typed = {name: value for name, value in properties.items() if isinstance(value, Mapping)}
    return coerce_arguments(arguments, {"properties": typed})


@lru_cache(maxsize=1024)
def _build_call_validator(schema: str) -> Validator | str:
    """Return a validator of calls, or the error of an invalid schema.

    Remote references are not fetched.
    """
    parsed = json.loads(schema)
    is_schema = isinstance(parsed, dict | bool)
    if not is_schema:
        return f"{parsed!r} is neither an object nor true or false"
    dialect = parsed.get("$schema", "") if parsed is not True and parsed else ""
    if not isinstance(dialect, str):
        return f"$schema must be a text, got {dialect!r}"
    validator_class = validator_for(parsed, default=Draft202012Validator)
    try:
        validator_class.check_schema(parsed)
    except SchemaError as error:
        return error.message
    validator: Validator = validator_class(parsed, registry=Registry())
    return validator


def _first_error(validator: Validator, arguments: JsonObject) -> str:
    try:
        first = next(iter(validator.iter_errors(arguments)), None)
    except Exception as error:  # An unresolvable reference.
        return str(error)
    return first.message if first is not None else ""
