"""Checks of a row that need no chat template: the order of roles, leaked answers, tool calls.

Every check yields one message per problem that it finds.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Any

from jsonschema.exceptions import SchemaError
from jsonschema.protocols import Validator
from jsonschema.validators import Draft202012Validator, validator_for
from referencing import Registry

from ludus.curation.lint.lint_rows import SourceLocation
from ludus.curation.lint.report import Finding, Level
from ludus.curation.tool_call_text import (
    ParsedCall,
    count_unparsable_calls,
    parse_call_json,
    parse_tool_calls,
)
from ludus.data.messages import message_text
from ludus.data.tool_schema import JsonObject, coerce_arguments
from ludus.data.training_row import RowConversation, TrainingRow

ROLES = ("system", "developer", "user", "assistant", "tool")
MIN_ANSWER_CHARS = 4
"""Shorter answers occur in prompts by chance."""
MAX_ANSWER_CHARS = 80
"""Longer texts are explanations rather than answers."""


def check_row(row: TrainingRow, location: SourceLocation) -> Iterator[Finding]:
    """Run all checks that need no student."""

    def findings(check: str, level: Level, messages: Iterable[str]) -> Iterator[Finding]:
        return (Finding(location, check, level, message) for message in messages)

    tools = row.tools
    for conversation in row.conversations:
        yield from findings("no-assistant", "error", missing_assistant(conversation))
        yield from findings("roles", "warning", misplaced_roles(conversation))
        # A conversation may have been rejected because of its calls.
        level: Level = "note" if conversation.name == "rejected" else "error"
        yield from findings("unknown-tool", level, unknown_tools(conversation, tools))
        yield from findings("arguments-not-object", level, unreadable_calls(conversation))
        for coercible, message in invalid_arguments(conversation, tools):
            yield Finding(location, "arguments-unfit", "note" if coercible else level, message)
        yield from findings("no-tools", "warning", calls_without_tools(conversation, tools))
        yield from findings("unanswered-call", "warning", unanswered_calls(conversation))
        orphans = results_without_call(conversation)
        yield from findings("answer-without-call", "warning", orphans)
        yield from findings("environment-tokens", "note", environment_turns(conversation))
        if conversation.name != "rejected":
            leaks = answers_in_prompt(conversation)
            yield from findings("answer-in-prompt", "warning", leaks)
    yield from findings("tool-schema", "warning", invalid_schemas(tools))
    if row.is_pair and row.conversations[0].messages == row.conversations[1].messages:
        yield Finding(location, "equal-sides", "error", "chosen and rejected are the same")


def missing_assistant(conversation: RowConversation) -> Iterator[str]:
    subject = f"the {conversation.name} side" if conversation.name else "it"
    if not conversation.completion:
        yield f"{subject} has no messages"
    elif not conversation.replies:
        yield f"{subject} has no assistant turn with loss"


def misplaced_roles(conversation: RowConversation) -> Iterator[str]:
    """Orders of roles that do not occur in use, such as a system prompt in the middle.

    Which orders a chat template accepts at all is found out by rendering.
    """
    roles = [message["role"] for message in conversation.messages]
    turns = [role for role in roles if role not in ("system", "developer")]
    if turns and turns[0] != "user":
        yield f"the first turn has the role {turns[0]!r}, not 'user'"
    for at, (previous, role) in enumerate(zip(["", *roles], roles, strict=False)):
        if role not in ROLES:
            yield f"message {at} has the unknown role {role!r}"
        elif role in ("system", "developer") and previous not in ("", "system", "developer"):
            yield f"message {at} is a system prompt in the middle"
        elif role == previous == "assistant":
            yield f"message {at} is a second assistant turn in a row"
        elif role == "tool" and previous == "user":
            yield f"message {at} is a tool result right after a user turn"


def environment_turns(conversation: RowConversation) -> Iterator[str]:
    """Messages on a side of a pair that the model did not write."""
    completion = conversation.completion
    count = sum(message["role"] != "assistant" for message in completion)
    if conversation.name and count:
        yield (
            f"{count} of {len(completion)} messages of the {conversation.name} side come from the "
            "environment and must be masked out of the loss"
        )


def answers_in_prompt(conversation: RowConversation) -> Iterator[str]:
    """Report the answer if it occurs as a whole word before the first reply.

    The answer is any argument of the last tool calls, or the last text if it is short. At most one
    problem is reported, because several arguments of one call may occur.
    """
    if not conversation.replies:
        return
    prompt_texts = []
    for message in conversation.messages:
        if message["role"] == "assistant":
            break
        if message["role"] != "tool":
            prompt_texts.append(message_text(message))
    prompt = "\n".join(prompt_texts).lower()
    replies = conversation.replies
    last_calls = next(
        (calls for reply in reversed(replies) if (calls := parse_tool_calls(reply))), []
    )
    answers = [str(leaf).strip() for call in last_calls for leaf in _answer_values(call.arguments)]
    last_text = message_text(replies[-1]).strip().rstrip(".")
    if len(last_text) <= MAX_ANSWER_CHARS and not parse_tool_calls(replies[-1]):
        answers.append(last_text)
    for answer in answers:
        if len(answer) < MIN_ANSWER_CHARS:
            continue
        word = answer.lower()
        if word in prompt and re.search(rf"(?<!\w){re.escape(word)}(?!\w)", prompt):
            yield f"the answer {answer!r} occurs in the prompt"
            return


def _answer_values(value: Any) -> Iterator[str | int | float]:
    """Yield the texts and numbers in the arguments of a call, which may be the answer."""
    if isinstance(value, dict):
        for item in value.values():
            yield from _answer_values(item)
    elif isinstance(value, list):
        for item in value:
            yield from _answer_values(item)
    elif isinstance(value, str | int | float) and not isinstance(value, bool):
        yield value


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
