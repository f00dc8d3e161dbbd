"""Parses tool calls that a person types: `move north 3`, `move direction=north`, or JSON.

Pure functions. An invalid line raises `InvalidCall`, and no environment sees it.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from typing import Any

from ludus.data.tool_schema import JsonObject, ToolSpec, coerce_arguments, json_types
from ludus.errors import did_you_mean

_TYPE_NAMES = {
    "string": "text",
    "integer": "a whole number",
    "number": "a number",
    "boolean": "yes or no",
    "array": "a JSON list",
    "object": "a JSON object",
}
_BOOLEAN_WORDS = {"yes": True, "y": True, "true": True, "no": False, "n": False, "false": False}


class InvalidCall(Exception):
    """The line is not a valid call; the message says why, and what to type."""


def find_typed_tool(name: str, tools: Mapping[str, ToolSpec]) -> ToolSpec:
    """The tool of a typed name; raises `InvalidCall` with a hint where there is none."""
    if name in tools:
        return tools[name]
    hint = did_you_mean(name, [*tools, "help", "quit"], f"Tools: {', '.join(tools)}.")
    raise InvalidCall(f"There is no tool {name!r}. {hint}")


def parse_typed_arguments(tool: ToolSpec, line: str) -> JsonObject:
    """Parse what follows a tool's name. Required arguments may be missing."""
    line = line.strip()
    names = list(tool.parameters())
    if not line:
        return {}
    if line.startswith("{"):
        return _parse_json_arguments(tool, line)
    if not names:
        raise InvalidCall(f"{tool.name} takes no arguments. Type {tool.name} alone.")
    if len(names) == 1 and not line.startswith(f"{names[0]}="):
        is_quoted = len(line) > 1 and line[0] == line[-1] and line[0] in "\"'"
        return {names[0]: parse_typed_value(tool, names[0], line[1:-1] if is_quoted else line)}
    try:
        words = shlex.split(line)
    except ValueError:
        words = line.split()  # An apostrophe, not a quote.
    typed: dict[str, str] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if equals and name in names:
            typed[name] = value
            continue
        free = next((name for name in names if name not in typed), None)
        if free is None:
            raise InvalidCall(
                f"Too many arguments for {usage_line(tool)}. Quotes keep words together."
            )
        typed[free] = word
    return {name: parse_typed_value(tool, name, text) for name, text in typed.items()}


def parse_typed_value(tool: ToolSpec, name: str, text: str) -> Any:
    """The value of one typed argument, in the type of its schema."""
    from jsonschema import Draft202012Validator

    schema = tool.parameters()[name]
    value: Any = coerce_arguments({name: text}, {"properties": {name: schema}})[name]
    if "boolean" in json_types(schema) and isinstance(value, str):
        value = _BOOLEAN_WORDS.get(value.lower(), value)
    whole = {**schema, "$defs": tool.input_schema.get("$defs", {})}
    for error in Draft202012Validator(whole).iter_errors(value):
        if error.validator not in ("type", "anyOf", "enum"):
            raise InvalidCall(f"{name}: {error.message}.")
        hint = did_you_mean(text, [str(choice) for choice in schema.get("enum", ())])
        raise InvalidCall(f"{name} must be {describe_type(schema)}, not {text!r}. {hint}".strip())
    return value


def describe_type(schema: Mapping[str, Any]) -> str:
    """What to type: `a whole number`, or `north, south or east`."""
    if "enum" in schema:
        *others, last = [str(choice) for choice in schema["enum"]]
        return f"{', '.join(others)} or {last}" if others else last
    kinds = [_TYPE_NAMES.get(kind, kind) for kind in json_types(schema) if kind != "null"]
    return " or ".join(dict.fromkeys(kinds)) or "a value"


def usage_line(tool: ToolSpec) -> str:
    """The tool's usage, such as `move DIRECTION [STEPS]`."""
    required = tool.required_parameters
    words = [
        name.upper() if name in required else f"[{name.upper()}]" for name in tool.parameters()
    ]
    return " ".join([tool.name, *words])


def _parse_json_arguments(tool: ToolSpec, line: str) -> JsonObject:
    try:
        arguments = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise InvalidCall(f"Invalid JSON: {error}.") from None
    known = tool.parameters()
    for name in arguments:
        if name not in known:
            hint = did_you_mean(name, known, f"It takes {', '.join(known) or 'none'}.")
            raise InvalidCall(f"{tool.name} has no argument {name!r}. {hint}")
    return {
        name: parse_typed_value(tool, name, value if isinstance(value, str) else json.dumps(value))
        for name, value in arguments.items()
    }
