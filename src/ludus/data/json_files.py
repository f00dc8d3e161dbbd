"""JSON: conversion of Python values, lines of JSONL files, and small text files."""

from __future__ import annotations

import errno
import json
from codecs import BOM_UTF8
from collections.abc import Iterator, Mapping
from dataclasses import asdict, is_dataclass
from enum import Enum
from functools import partial
from math import isfinite
from pathlib import Path
from typing import Any

from pydantic import BaseModel
from pydantic_core import SchemaValidator, core_schema, from_json

from ludus.data.tool_schema import JsonObject
from ludus.errors import RunError

MAX_LINE_BYTES = 256 << 20
"""Of a line that is read: parsed, it takes several times as much memory."""
MAX_TEXT_CHARS = 50_000_000
"""Of a text file that is read as a whole."""
_BLOCK_BYTES = 4 << 20
# Validates a line without building Python objects: a tenth of the time of `from_json`.
_ANY_OBJECT = SchemaValidator(core_schema.typed_dict_schema({}, extra_behavior="ignore"))


def numbered_lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Yield the lines of a JSONL file with their numbers, from 1; empty lines are skipped.

    A byte-order mark, which editors on Windows put at the start, is no part of the first line.
    """
    for number, line in enumerate(read_lines(path), 1):
        if number == 1:
            line = line.removeprefix(BOM_UTF8)
        if not line.isspace():
            yield number, line


def read_lines(path: Path) -> Iterator[bytes]:
    """Yield all lines of a JSONL file; an `OSError` is raised as `RunError`."""
    try:
        with path.open("rb", buffering=_BLOCK_BYTES) as file:
            for line in iter(partial(file.readline, MAX_LINE_BYTES + 1), b""):
                if len(line) > MAX_LINE_BYTES:
                    raise line_too_long(path)
                yield line
    except OSError as error:
        raise RunError(f"{path} cannot be read: {error.strerror or error}.") from error


def line_too_long(path: Path) -> RunError:
    return RunError(
        f"{path} has a line of more than {MAX_LINE_BYTES >> 20} MB, and cannot be read as JSONL."
    )


def read_text(path: Path, max_chars: int = MAX_TEXT_CHARS) -> str:
    """Read a text file in UTF-8, such as a configuration, without a byte-order mark.

    Raises `OSError`, also for a file that is too long, and `UnicodeDecodeError`.
    """
    with path.open(encoding="utf-8-sig") as file:
        text = file.read(max_chars + 1)
    if len(text) > max_chars:
        raise OSError(errno.EFBIG, f"it has more than {max_chars:,} characters", str(path))
    return text


def is_json_object(line: bytes) -> bool:
    """Whether a line of a JSONL file is a JSON object in UTF-8."""
    try:
        _ANY_OBJECT.validate_json(line.removeprefix(BOM_UTF8))
    except ValueError:
        return False
    return True


def to_jsonable(value: object) -> Any:
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


def read_json_object(file: Path) -> JsonObject:
    """The object in a JSON file; empty if the file is missing, no regular one, or damaged."""
    try:
        # Opening a pipe would wait for its writer.
        value = from_json(file.read_bytes()) if file.is_file() else {}
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}


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
