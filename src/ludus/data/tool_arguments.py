"""Arguments of tool calls: parsing what models send, and coercing it to the tool's schema."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from pydantic_core import from_json

from ludus.data.tool_schema import JsonObject


def parse_arguments(text: str) -> JsonObject | None:
    """Parse the arguments of a call; None where they are not a JSON object.

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


def _coerce_to_number(value: Any) -> Any:
    """Parse an argument that is the text of a number; other values are left unchanged."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value.strip())
    except ValueError:
        return value


def _coerce_to_structure(value: Any) -> Any:
    """Parse an argument that is the JSON text of a list or an object."""
    parsed = _coerce_to_number(value)
    return parsed if isinstance(parsed, dict | list) else value


_JSON_TYPES: dict[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "array": (list,),
    "object": (dict,),
    "null": (type(None),),
}
_JSON_TYPE_OF: dict[type, str] = {
    str: "string",
    int: "integer",
    float: "number",
    bool: "boolean",
    list: "array",
    dict: "object",
}
_COERCIONS: dict[str, Callable[[Any], Any]] = {
    "string": lambda value: json.dumps(value) if isinstance(value, int | float) else value,
    "integer": _coerce_to_number,
    "number": _coerce_to_number,
    "boolean": lambda value: (
        {"true": True, "false": False}.get(value, value) if isinstance(value, str) else value
    ),
    "array": _coerce_to_structure,
    "object": _coerce_to_structure,
}


def json_types(schema: Any) -> list[str]:
    """The types that a JSON schema names, itself or in the options of its `anyOf`."""
    if not isinstance(schema, Mapping):  # The schema `true`, which allows anything.
        return []
    kind = schema.get("type")
    if kind is not None:
        return list(kind) if isinstance(kind, list) else [kind]
    return [kind for option in schema.get("anyOf", ()) for kind in json_types(option)]


def _argument_fits_type(value: Any, kind: str) -> bool:
    if isinstance(value, bool):
        return kind == "boolean"
    return isinstance(value, _JSON_TYPES.get(kind, (object,)))


def coerce_arguments(arguments: Mapping[str, Any], schema: Mapping[str, Any]) -> JsonObject:
    """Convert arguments to the declared types where that is lossless.

    Models write 41 where the schema says string, and "41" where it says integer. Other values are
    left unchanged, for the validation to report.
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
            candidate = _COERCIONS.get(kind, lambda same: same)(value)
            if _argument_fits_type(candidate, kind):
                coerced[name] = candidate
                break
    return coerced
