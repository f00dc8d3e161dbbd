"""The schema of a tool, and calls of it: arguments are parsed and coerced to the schema."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import AliasChoices, BaseModel, ConfigDict, Field
from pydantic_core import from_json

JsonObject = dict[str, Any]


class FrozenModel(BaseModel):
    """An immutable record without further fields."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class ToolSpec(BaseModel):
    """Name, description and arguments of a tool."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    name: str
    description: str = ""
    input_schema: JsonObject = Field(
        default_factory=lambda: {"type": "object", "properties": {}},
        validation_alias=AliasChoices("input_schema", "inputSchema"),
        serialization_alias="inputSchema",
    )

    def to_openai(self) -> JsonObject:
        """The schema of the tool in the format of OpenAI's API, which chat templates take too."""
        return {
            "type": "function",
            "function": {
                "name": self.name,
                "description": self.description,
                "parameters": self.input_schema,
            },
        }

    def parameters(self) -> dict[str, JsonObject]:
        """The schema of each parameter, with references resolved."""
        definitions = self.input_schema.get("$defs", {})
        schemas: dict[str, JsonObject] = {}
        for name, schema in self.input_schema.get("properties", {}).items():
            schemas[name] = dict(schema) if isinstance(schema, dict) else {}
            if "$ref" in schemas[name]:
                reference = str(schemas[name].pop("$ref")).rpartition("/")[2]
                schemas[name] = {**definitions.get(reference, {}), **schemas[name]}
        return schemas

    @property
    def required_parameters(self) -> Sequence[str]:
        names: Sequence[str] = self.input_schema.get("required", ())
        return names


class ToolCall(FrozenModel):
    """A call of a tool."""

    name: str
    arguments: JsonObject = Field(default_factory=dict)
    text: str = ""
    """What is said with the call: the content of the assistant's message."""


def strip_titles(schema: Any) -> Any:
    """Remove the titles that pydantic adds to a schema: they cost tokens in every prompt."""
    if isinstance(schema, Mapping):
        return {
            key: strip_titles(value)
            for key, value in schema.items()
            if not (key == "title" and isinstance(value, str))
        }
    if isinstance(schema, list):
        return [strip_titles(item) for item in schema]
    return schema


def parse_arguments(text: str) -> JsonObject | None:
    """Parse the arguments of a tool call; None if they are not a JSON object.

    NaN, lone surrogates and nesting beyond the parser's limit are rejected. An empty text counts as
    no arguments: many models write that for a tool without parameters.
    """
    if not text.strip():
        return {}
    try:
        arguments = from_json(text, allow_inf_nan=False)
    except (ValueError, TypeError):  # TypeError: a lone surrogate, which cannot be encoded.
        return None
    return arguments if isinstance(arguments, dict) else None


_JSON_TYPES: dict[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "array": (list,),
    "object": (dict,),
    "null": (type(None),),
}
_JSON_TYPE_OF = {types[-1]: name for name, types in _JSON_TYPES.items() if name != "null"}


def _coerce(value: object, kind: str) -> object:
    """Convert a number to text, or text to the value that it is in JSON."""
    if kind == "string":
        return json.dumps(value) if isinstance(value, int | float) else value
    if kind not in _JSON_TYPES or kind == "null" or not isinstance(value, str):
        return value
    if kind == "boolean":
        return {"true": True, "false": False}.get(value, value)
    try:
        return json.loads(value.strip())
    except (ValueError, RecursionError):
        return value


def json_types(schema: object) -> list[str]:
    """The types that a JSON schema names, itself or in the options of its `anyOf`."""
    if not isinstance(schema, Mapping):  # The schema `true`, which allows anything.
        return []
    kind = schema.get("type")
    if kind is not None:
        return list(kind) if isinstance(kind, list) else [kind]
    return [kind for option in schema.get("anyOf", ()) for kind in json_types(option)]


def _argument_fits_type(value: object, kind: str) -> bool:
    if isinstance(value, bool):
        return kind == "boolean"
    return isinstance(value, _JSON_TYPES.get(kind, (object,)))


def coerce_arguments(arguments: Mapping[str, Any], schema: Mapping[str, Any]) -> JsonObject:
    """Convert arguments to the types of the schema if that is lossless.

    Models write 41 for a string, and "41" for an integer. Other values are left unchanged, for the
    validation to report.
    """
    properties: Mapping[str, Any] = schema.get("properties", {})
    coerced = dict(arguments)
    for name, value in arguments.items():
        declared = properties.get(name, {})
        if type(declared) is dict and declared.get("type") == _JSON_TYPE_OF.get(type(value), ""):
            continue  # The common case, on the path of every step.
        kinds = json_types(declared)
        if any(_argument_fits_type(value, kind) for kind in kinds):
            continue
        for kind in kinds:
            candidate = _coerce(value, kind)
            if _argument_fits_type(candidate, kind):
                coerced[name] = candidate
                break
    return coerced
