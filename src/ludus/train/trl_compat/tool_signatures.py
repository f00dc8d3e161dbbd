"""Tool schemas as Python methods: signature, type hints and docstring.

TRL derives the tools of an environment from its methods. What type hints cannot express (minimum,
pattern) is lost.
"""

from __future__ import annotations

import functools
import inspect
import operator
import re
from collections.abc import Callable, Mapping
from keyword import iskeyword
from types import GenericAlias, NoneType
from typing import Any, Literal

from ludus.data.tool_schema import ToolSpec
from ludus.errors import ConfigError

_JSON_TYPES: dict[str, Any] = {
    "string": str, "integer": int, "number": float, "boolean": bool, "null": NoneType,
}  # fmt: skip
_DOCSTRING_SECTIONS = re.compile(r"\s*\b(Args|Returns|Raises):.*", re.DOTALL)
_RESERVED_NAMES = ("reset", "get_reward")
_MAX_DEPTH = 8


def build_method(tool: ToolSpec, call: Callable[..., Any]) -> Callable[..., Any]:
    """Build a method with the tool's signature that runs `call(self, tool_name, arguments)`."""
    # The schema of a property may be `true` instead of an object.
    properties: dict[str, Mapping[str, Any]] = {
        name: schema if isinstance(schema, Mapping) else {}
        for name, schema in tool.input_schema.get("properties", {}).items()
    }
    for argument in properties:
        if not argument.isidentifier() or iskeyword(argument):
            raise ConfigError(
                f"TRL cannot offer the tool {tool.name!r}: its argument {argument!r} is not a "
                "valid Python name. Train with Ludus's own rollouts."
            )
    if tool.name in _RESERVED_NAMES or tool.name.startswith("_"):
        raise ConfigError(
            f"TRL cannot offer a tool with the name {tool.name!r}, which is reserved. Train with "
            "Ludus's own rollouts."
        )

    # `self` is positional-only, so a tool may have an argument of that name.
    def method(self: Any, /, **arguments: Any) -> Any:
        return call(self, tool.name, arguments)

    # Keyword-only, so that optional parameters may precede required ones.
    parameters = [
        inspect.Parameter(
            name,
            inspect.Parameter.KEYWORD_ONLY,
            default=inspect.Parameter.empty
            if name in tool.input_schema.get("required", ())
            else schema.get("default"),
            annotation=_type_hint(schema, tool.input_schema.get("$defs") or {}),
        )
        for name, schema in properties.items()
    ]
    # TRL's docstring parser takes the next line for a missing description, and stops at a line
    # break: every argument has a description, on one line.
    lines = [
        f"    {name}: {' '.join(str(schema.get('description') or '').split()) or name}"
        for name, schema in properties.items()
    ]
    purpose = _DOCSTRING_SECTIONS.sub("", tool.description).strip() or f"Call {tool.name}."
    typed: Any = method
    typed.__name__ = typed.__qualname__ = tool.name
    typed.__doc__ = "\n".join([purpose, "", "Args:", *lines]) if lines else purpose
    typed.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    typed.__signature__ = inspect.Signature(
        [inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY), *parameters]
    )
    return method


def _type_hint(schema: Any, defs: Mapping[str, Any], depth: int = 0) -> Any:
    """The Python type hint of a JSON schema; Any if there is none."""
    if not isinstance(schema, Mapping) or depth > _MAX_DEPTH:
        return Any

    def inner(part: Any) -> Any:
        return _type_hint(part, defs, depth + 1)

    if "$ref" in schema:
        return inner(defs.get(str(schema["$ref"]).rpartition("/")[2]))
    if choices := schema.get("enum"):
        # Lists and objects cannot be in a Literal.
        is_literal = all(isinstance(choice, str | int | float | None) for choice in choices)
        return Literal[tuple(choices)] if is_literal else Any
    kind = schema.get("type")
    options = schema.get("anyOf") or schema.get("oneOf") or []
    if isinstance(kind, list):
        options = [{**schema, "type": each} for each in kind]
    if options:
        hints = [inner(option) for option in options]
        return Any if Any in hints else functools.reduce(operator.or_, hints)
    if kind == "array":
        return GenericAlias(list, inner(schema["items"])) if "items" in schema else list
    if kind == "object":
        values = schema.get("additionalProperties")
        return GenericAlias(dict, (str, inner(values))) if isinstance(values, Mapping) else dict
    return _JSON_TYPES.get(str(kind), Any)
