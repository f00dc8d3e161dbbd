"""Checks of a row that need no chat template: the order of roles, tool calls."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import NamedTuple

from jsonschema.exceptions import SchemaError
from jsonschema.protocols import Validator
from jsonschema.validators import Draft202012Validator, validator_for
from referencing import Registry

from ludus.curation.lint.report import Problem
from ludus.data.tool_schema import JsonObject, coerce_arguments, parse_arguments
from ludus.data.training_row import RowConversation, TrainingRow

_ROLES = ("system", "developer", "user", "assistant", "tool")


class _ToolCall(NamedTuple):
    name: str
    arguments: JsonObject | None
    """None if they are not a JSON object."""
    call_id: str | None


def check_row(row: TrainingRow) -> Iterator[Problem]:
    """Run all row checks, which need no student."""
    tools = {}
    for tool in row.tools or []:
        function = tool.get("function", tool)
        schema = json.dumps(function.get("parameters") or {}, sort_keys=True)
        tools[str(function["name"])] = schema
        if isinstance(error := _build_validator(schema), str):
            message = f"the parameters of {function['name']} are not a valid JSON schema: {error}"
            yield Problem("tool-schema", "warning", message)
    for conversation in row.conversations:
        subject = f"the {conversation.name} side" if conversation.name else "it"
        if not conversation.completion:
            yield Problem("no-assistant", "error", f"{subject} has no messages")
        elif not conversation.replies:
            yield Problem("no-assistant", "error", f"{subject} has no assistant turn with loss")
        yield from _check_roles(conversation)
        yield from _check_results(conversation)
        # A conversation may have been rejected because of its calls.
        if conversation.name != "rejected":
            yield from _check_calls(conversation, tools)
    if row.is_pair and row.conversations[0].messages == row.conversations[1].messages:
        yield Problem("equal-sides", "error", "chosen and rejected are the same")


def _check_roles(conversation: RowConversation) -> Iterator[Problem]:
    """Find orders of roles that do not occur in use, such as a system prompt in the middle.

    Which orders a chat template accepts at all is found out by rendering.
    """
    roles = [message["role"] for message in conversation.messages]
    turns = [role for role in roles if role not in ("system", "developer")]
    if turns and turns[0] != "user":
        yield Problem("roles", "warning", f"the first turn has the role {turns[0]!r}, not 'user'")
    for at, (previous, role) in enumerate(zip(["", *roles], roles, strict=False)):
        fault = ""
        if role not in _ROLES:
            fault = f"has the unknown role {role!r}"
        elif role in ("system", "developer") and previous not in ("", "system", "developer"):
            fault = "is a system prompt in the middle"
        elif role == previous == "assistant":
            fault = "is a second assistant turn in a row"
        elif role == "tool" and previous == "user":
            fault = "is a tool result right after a user turn"
        if fault:
            yield Problem("roles", "warning", f"message {at} {fault}")


def _check_calls(conversation: RowConversation, tools: Mapping[str, str]) -> Iterator[Problem]:
    """Check the calls of the replies with loss against the tools; `tools` has their schemas."""
    calls = [call for message in conversation.replies for call in _tool_calls(message)]
    if calls and not tools:
        yield Problem("no-tools", "warning", "it calls tools but offers none")
    for name, arguments, _ in calls:
        if tools and name not in tools:
            message = f"it calls {name}, but offers only {', '.join(sorted(tools))}"
            yield Problem("unknown-tool", "error", message)
        if arguments is None:
            message = f"the arguments of {name} are not a JSON object"
            yield Problem("arguments-not-object", "error", message)
            continue
        validator = _build_validator(tools[name]) if name in tools else ""
        if isinstance(validator, str):
            continue
        schema = validator.schema if isinstance(validator.schema, Mapping) else {}
        properties = schema.get("properties", {})
        typed = {key: value for key, value in properties.items() if isinstance(value, Mapping)}
        try:
            # Ludus' tools accept "41" for a number, and so do most others.
            coerced = coerce_arguments(arguments, {"properties": typed})
            error = next((each.message for each in validator.iter_errors(coerced)), None)
        except Exception as failure:  # An unresolvable reference.
            error = str(failure)
        if error is not None:
            message = f"{name} does not accept its arguments: {error}"
            yield Problem("arguments-invalid", "error", message)


def _check_results(conversation: RowConversation) -> Iterator[Problem]:
    """Match tool results to calls, by id or else in order. A row may end with a call."""
    pending: list[_ToolCall] = []
    for at, message in enumerate(conversation.messages):
        if message["role"] == "tool":
            call_id = message.get("tool_call_id")
            by_id = next((call for call in pending if call_id and call.call_id == call_id), None)
            by_order = next((call for call in pending if not call_id or not call.call_id), None)
            if (call := by_id or by_order) is not None:
                pending.remove(call)
            else:
                text = f"message {at} is a tool result without a call"
                yield Problem("answer-without-call", "warning", text)
            continue
        for call in pending:
            text = f"the call of {call.name} has no result, but the conversation continues"
            yield Problem("unanswered-call", "warning", text)
        pending = _tool_calls(message)


def _tool_calls(message: JsonObject) -> list[_ToolCall]:
    calls = []
    for call in message.get("tool_calls") or []:
        function = call.get("function", call)
        arguments = function.get("arguments") or {}
        if isinstance(arguments, str):
            arguments = parse_arguments(arguments)
        is_object = isinstance(arguments, dict)
        calls.append(_ToolCall(function["name"], arguments if is_object else None, call.get("id")))
    return calls


@lru_cache(maxsize=1024)
def _build_validator(schema: str) -> Validator | str:
    """Return a validator of calls, or the error of an invalid schema.

    Remote references are not fetched.
    """
    parsed = json.loads(schema)
    if not isinstance(parsed, dict | bool):
        return f"{parsed!r} is neither an object nor true or false"
    dialect = parsed.get("$schema", "") if isinstance(parsed, dict) else ""
    if not isinstance(dialect, str):
        return f"$schema must be a text, got {dialect!r}"
    validator_class = validator_for(parsed, default=Draft202012Validator)
    try:
        if isinstance(parsed, dict):
            validator_class.check_schema(parsed)
    except SchemaError as error:
        return error.message
    validator: Validator = validator_class(parsed, registry=Registry())
    return validator
