"""A tool's schema as a Python function shows it: signature, type hints, docstring.

TRL reads the tools of an environment off its methods and has no other way to be told of them. What
hints cannot say (a smallest number, a pattern) is lost on it.
"""

from __future__ import annotations

import functools
import inspect
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from keyword import iskeyword
from types import GenericAlias, NoneType
from typing import Any, Literal

from ludus.data.tool_schema import ToolSpec
from ludus.errors import ConfigError

ToolMethod = Callable[..., Any]

_JSON_TYPES: dict[str, Any] = {
    "string": str,
    "integer": int,
    "number": float,
    "boolean": bool,
    "null": NoneType,
}
_DOCSTRING_SECTIONS = re.compile(r"\s*\b(Args|Returns|Raises):.*", re.DOTALL)
_RESERVED_NAMES = ("reset", "get_reward")
_MAX_DEPTH = 8


def build_method(tool: ToolSpec, call: ToolMethod) -> ToolMethod:
    """A method that takes what the tool takes, and hands it to `call(self, name, arguments)`."""
    _check_names(tool)
    name = tool.name

    # No argument of a tool can collide with `self`, which has no name here.
    def method(self: Any, /, **arguments: Any) -> Any:
        return call(self, name, arguments)

    made: Any = method
    parameters = _parameters(tool.input_schema)
    itself = inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY)
    made.__name__ = made.__qualname__ = name
    made.__doc__ = _docstring(tool)
    made.__annotations__ = {each.name: each.annotation for each in parameters}
    made.__signature__ = inspect.Signature([itself, *parameters])
    return method


def type_hint(schema: Any, defs: Mapping[str, Any] | None = None, depth: int = 0) -> Any:
    """The Python type that a JSON schema speaks of; what has none is anything."""
    defs = defs or {}
    if not isinstance(schema, Mapping) or depth > _MAX_DEPTH:
        return Any

    def inner(part: Any) -> Any:
        return type_hint(part, defs, depth + 1)

    if "$ref" in schema:
        return inner(defs.get(str(schema["$ref"]).rpartition("/")[2]))
    if choices := [schema["const"]] if "const" in schema else schema.get("enum"):
        return _literal_hint(choices)
    if len(all_of := schema.get("allOf") or []) == 1 and isinstance(all_of[0], Mapping):
        rest = {name: part for name, part in schema.items() if name != "allOf"}
        return inner({**rest, **all_of[0]})
    if options := schema.get("anyOf") or schema.get("oneOf"):
        return _union_hint([inner(option) for option in options])
    kind = schema.get("type")
    if isinstance(kind, list):
        return _union_hint([inner({**schema, "type": each}) for each in kind])
    if kind == "array":
        return GenericAlias(list, inner(schema["items"])) if "items" in schema else list
    if kind == "object":
        values = schema.get("additionalProperties")
        return GenericAlias(dict, (str, inner(values))) if isinstance(values, Mapping) else dict
    return _JSON_TYPES.get(str(kind), Any)


def _literal_hint(choices: Sequence[Any]) -> Any:
    """Lists and objects can be no literals."""
    plain = all(choice is None or isinstance(choice, str | int | float) for choice in choices)
    return Literal[tuple(choices)] if plain else Any


def _union_hint(hints: list[Any]) -> Any:
    if Any in hints:
        return Any
    return functools.reduce(operator.or_, hints)


def _parameters(schema: Mapping[str, Any]) -> list[inspect.Parameter]:
    """By keyword only: then one that may be left out can stand before one that may not."""
    properties: Mapping[str, Any] = schema.get("properties", {})
    required = schema.get("required", ())
    return [
        inspect.Parameter(
            name,
            inspect.Parameter.KEYWORD_ONLY,
            default=inspect.Parameter.empty if name in required else _default(of),
            annotation=type_hint(of, schema.get("$defs")),
        )
        for name, of in properties.items()
    ]


def _default(schema: Any) -> Any:
    return schema.get("default") if isinstance(schema, Mapping) else None


def _docstring(tool: ToolSpec) -> str:
    """What the tool is for, and a line for each argument.

    An argument's words must be on one line, and there must be some: a reader of such docstrings
    takes the next line for them otherwise.
    """
    purpose = _DOCSTRING_SECTIONS.sub("", tool.description).strip() or f"Call {tool.name}."
    properties: Mapping[str, Any] = tool.input_schema.get("properties", {})
    lines = [f"    {name}: {_description(of) or name}" for name, of in properties.items()]
    return "\n".join([purpose, "", "Args:", *lines]) if lines else purpose


def _description(schema: Any) -> str:
    told = schema.get("description", "") if isinstance(schema, Mapping) else ""
    return " ".join(str(told).split())


def _check_names(tool: ToolSpec) -> None:
    arguments = tool.input_schema.get("properties", {})
    wrong = [name for name in arguments if not name.isidentifier() or iskeyword(name)]
    if wrong:
        raise ConfigError(
            f"The tool {tool.name!r} has an argument {wrong[0]!r}, which no Python function can "
            "have, so TRL cannot offer it. Train with Ludus's own rollouts."
        )
    if tool.name in _RESERVED_NAMES or tool.name.startswith("_"):
        raise ConfigError(
            f"TRL cannot offer a tool with the name {tool.name!r}, which means something else to "
            "it. Train with Ludus's own rollouts."
        )
