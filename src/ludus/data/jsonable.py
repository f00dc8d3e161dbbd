"""Convert Python values to JSON, and read fields of JSON whose content is not certain."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, is_dataclass
from enum import Enum
from math import isfinite
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from ludus.data.tool_schema import JsonObject
from ludus.errors import RunError


def to_jsonable(value: Any) -> Any:
    """Convert a value to JSON types. Numbers that are not finite become None.

    An object of any other type becomes the name of its type, not its `repr`, which may hold an
    address in memory or a secret.
    """
    if value is None or (isinstance(value, bool | int | str) and not isinstance(value, Enum)):
        return value
    if isinstance(value, float):
        return value if isfinite(value) else None
    if isinstance(value, Enum):
        return to_jsonable(value.value)
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, BaseModel):
        return to_jsonable(value.model_dump())
    if is_dataclass(value) and not isinstance(value, type):
        return to_jsonable(asdict(value))
    if isinstance(value, Mapping):
        return {str(key): to_jsonable(item) for key, item in value.items()}
    if isinstance(value, set | frozenset):
        return sorted((to_jsonable(item) for item in value), key=str)
    if isinstance(value, list | tuple):
        return [to_jsonable(item) for item in value]
    if hasattr(value, "item") and not getattr(value, "shape", True):
        return to_jsonable(value.item())
    return type(value).__name__


def dump_json(value: JsonObject, *, indent: int | None = None, sort_keys: bool = False) -> str:
    """Strict JSON: raises `RunError` for NaN and for lone surrogates."""
    try:
        text = json.dumps(
            value, indent=indent, sort_keys=sort_keys, ensure_ascii=False, allow_nan=False
        )
        text.encode()
    except (TypeError, ValueError) as error:
        raise RunError(f"The value cannot be written as JSON: {error}.") from error
    return text


def object_field(fields: JsonObject, key: str) -> JsonObject:
    """The JSON object under a key; empty if there is none."""
    value = fields.get(key)
    return value if isinstance(value, dict) else {}


def prune_nulls(value: Any) -> Any:
    """A JSON value without fields that are null, which Arrow adds to structs."""
    if isinstance(value, dict):
        return {key: prune_nulls(item) for key, item in value.items() if item is not None}
    return [prune_nulls(item) for item in value] if isinstance(value, list) else value


def int_field(fields: JsonObject, key: str) -> int | None:
    """The integer under a key; None if there is none."""
    value = fields.get(key)
    return value if isinstance(value, int) else None
