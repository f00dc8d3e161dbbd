"""Convert Python values to JSON: dataclasses, models, enums, paths, arrays."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, is_dataclass
from enum import Enum
from math import isfinite
from pathlib import Path
from typing import Any

from pydantic import BaseModel


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
