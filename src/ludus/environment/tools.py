"""`@tool`: declares a method as a tool, with a schema from its type hints and docstring."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeVar, get_type_hints, overload

from docstring_parser import DocstringStyle
from docstring_parser import parse as parse_docstring
from pydantic import BaseModel, ConfigDict, Field, PydanticUserError, ValidationError, create_model

from ludus.data.tool_schema import JsonObject, ToolSpec, coerce_arguments, strip_titles
from ludus.environment.faults import explain_validation_error, locate_function
from ludus.errors import BadEnvironment, describe_in_one_line

RESERVED_NAMES = frozenset({"reset", "step", "state", "close", "progress"})
_TOOL_ATTRIBUTE = "__ludus_tool__"

F = TypeVar("F", bound=Callable[..., Any])


@overload
def tool(function: F) -> F: ...
@overload
def tool(*, default: bool = False) -> Callable[[F], F]: ...
def tool(function: F | None = None, *, default: bool = False) -> F | Callable[[F], F]:
    """Offer a method to the model as a tool.

    Every parameter needs a type hint and a line under `Args:` in the docstring. An action without a
    tool name calls the tool with `default=True`; the only tool of an environment is its default.
    """

    def mark(method: F) -> F:
        setattr(method, _TOOL_ATTRIBUTE, {"default": default})
        return method

    return mark(function) if function is not None else mark


class InvalidArguments(Exception):
    """The arguments of a call are invalid; the message is for the model."""


@dataclass(frozen=True, slots=True)
class Tool:
    """One declared tool of one class."""

    spec: ToolSpec
    arguments: type[BaseModel]
    default: bool

    def bind(self, arguments: Mapping[str, object]) -> JsonObject:
        """Validate the arguments of a call; returns the keyword arguments of the method."""
        try:
            model = self.arguments.model_validate(
                coerce_arguments(arguments, self.spec.input_schema)
            )
        except ValidationError as error:
            known = list(self.arguments.model_fields)
            message = explain_validation_error(error, known, prefix=f"{self.spec.name}: ")
            raise InvalidArguments(message) from None
        return {name: getattr(model, name) for name in model.model_fields_set}


@cache
def collect_tools(cls: type) -> dict[str, Tool]:
    """The tools of a class, in the order of their definition."""
    methods = {
        name: method
        for base in reversed(cls.__mro__)
        for name, method in vars(base).items()
        if hasattr(method, _TOOL_ATTRIBUTE)
    }
    return {
        name: _build_tool(
            cls, name, getattr(method, _TOOL_ATTRIBUTE)["default"] or len(methods) == 1
        )
        for name, method in methods.items()
    }


def _build_tool(cls: type, name: str, default: bool) -> Tool:
    method = getattr(cls, name)
    owner = f"{locate_function(method)}: tool {cls.__name__}.{name}"
    if name in RESERVED_NAMES:
        raise BadEnvironment(f"{owner} has a reserved name.", "Rename the tool.")
    documentation = parse_docstring(inspect.getdoc(method) or "", DocstringStyle.GOOGLE)
    if not documentation.short_description:
        raise BadEnvironment(
            f"{owner} has no docstring, which is its description for the model.",
            "Write a docstring whose first line says what the tool does.",
        )
    descriptions = {param.arg_name: param.description or "" for param in documentation.params}
    try:
        hints = get_type_hints(method, include_extras=True)
    except Exception as error:
        raise BadEnvironment(
            f"{owner} has a type hint that cannot be resolved: {describe_in_one_line(error)}.",
            "Import that type at the top of the module, outside of `if TYPE_CHECKING`.",
        ) from None
    fields: JsonObject = {}
    for argument, parameter in list(inspect.signature(method).parameters.items())[1:]:
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            raise BadEnvironment(f"{owner} takes *{argument}.", "Name every argument instead.")
        if argument not in hints:
            raise BadEnvironment(
                f"{owner}: parameter {argument!r} has no type hint.",
                f"Write one, such as `{argument}: str`.",
            )
        if not (description := descriptions.get(argument)):
            raise BadEnvironment(
                f"{owner}: parameter {argument!r} is not described in the docstring.",
                f"Add a line `{argument}: …` under `Args:`.",
            )
        default_value = ... if parameter.default is parameter.empty else parameter.default
        fields[argument] = (hints[argument], Field(default=default_value, description=description))
    try:
        arguments = create_model(name, __config__=ConfigDict(extra="forbid"), **fields)
    except PydanticUserError as error:
        raise BadEnvironment(
            f"{owner} has an argument whose type has no JSON schema: "
            f"{describe_in_one_line(error)}.",
            "Use str, int, float, bool, list, dict or a pydantic model.",
        ) from None
    purpose = "\n\n".join(
        part for part in (documentation.short_description, documentation.long_description) if part
    )
    spec = ToolSpec(
        name=name, description=purpose, input_schema=strip_titles(arguments.model_json_schema())
    )
    return Tool(spec=spec, arguments=arguments, default=default)
