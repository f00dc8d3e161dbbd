"""Configs: the types and ranges of their fields, their digest, and what differs between two.

Fields are checked when a config is constructed: a value of another type would be noticed late, by
an operation that does not name the field.
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields
from functools import cache
from hashlib import blake2b
from numbers import Integral, Real
from types import UnionType
from typing import TYPE_CHECKING, Any, Literal, Union, get_args, get_origin

from ludus.data.json_files import dump_json
from ludus.data.tool_schema import JsonObject
from ludus.errors import ConfigError, did_you_mean

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

_MAX_VALUE_CHARS = 200
_NUMBERS: Mapping[Any, type] = {int: Integral, float: Real}


def check_field_types(config: DataclassInstance, *, prefix: str = "") -> None:
    """Raise a `ConfigError` for a field of a dataclass whose value is not of its annotated type.

    `prefix` comes before the names of fields. A list may stand for a tuple, and a whole number for
    a float, as type checkers have it.
    """
    hints = _read_hints(config.__class__)
    for field in fields(config):
        name, value, hint = field.name, getattr(config, field.name), hints[field.name]
        if _fits(value, hint):
            continue
        # A token must not get into logs, nor a thousand tasks.
        got = repr(value) if field.repr else type(value).__name__
        got = got if len(got) <= _MAX_VALUE_CHARS else f"{got[:_MAX_VALUE_CHARS]} …"
        alternatives = (hint, *get_args(hint))
        literals = [get_args(each) for each in alternatives if get_origin(each) is Literal]
        choices = [choice for literal in literals for choice in literal]
        if not choices:
            makers = [maker for each in alternatives if (maker := getattr(each, "made_by", ""))]
            advice = f" Use {makers[0]}({value!r})." if makers else ""
            expected = str(hint) if get_origin(hint) else hint.__name__
            expected = re.sub(r"\b(?:\w+\.)+", "", expected)
            raise ConfigError(f"`{prefix}{name}` must be {expected}, got {got}.{advice}")
        message = f"`{prefix}{name}` must be one of {', '.join(choices)}, got {got}."
        raise ConfigError(f"{message} {did_you_mean(str(value), choices)}".rstrip())


def check_at_least(name: str, value: float | None, minimum: int) -> None:
    """Raise if an argument is below its minimum; None is allowed."""
    if value is not None and not value >= minimum:
        raise ConfigError(f"`{name}` must be at least {minimum}, got {value}.")


def check_positive(name: str, value: float | None) -> None:
    """Raise if an argument is not positive and finite; None is allowed."""
    if value is not None and not 0 < value < float("inf"):
        raise ConfigError(f"`{name}` must be positive, got {value}.")


@cache
def _read_hints(config: type) -> Mapping[str, Any]:
    """The annotations of a class and its bases. Forward references within them stay texts."""
    return {
        # The type of `Annotated[type, ...]`.
        name: hint.__origin__ if hasattr(hint, "__metadata__") else hint
        for base in reversed(config.__mro__)
        for name, hint in inspect.get_annotations(base, eval_str=True).items()
    }


def _fits(value: object, hint: Any) -> bool:
    origin, arguments = get_origin(hint), get_args(hint)
    if hint is Any:
        return True
    if origin in (Union, UnionType):
        return any(_fits(value, each) for each in arguments)
    if origin is Literal:
        return value in arguments
    if hint in _NUMBERS:
        return isinstance(value, _NUMBERS[hint]) and not isinstance(value, bool)
    if origin is Callable:
        return callable(value)
    if origin in (dict, Mapping):
        return isinstance(value, Mapping)
    if origin in (tuple, Sequence):
        if not isinstance(value, Sequence) or isinstance(value, str | bytes):
            return False
        if origin is tuple and ... not in arguments:
            return len(value) == len(arguments) and all(map(_fits, value, arguments))
        return all(_fits(each, arguments[0]) for each in value)
    return isinstance(value, origin or hint)


_EXCERPT_CHARS = 60
_EXCERPT_LEAD = 20
_NOT_SET = "not set"


def config_digest(settings: JsonObject) -> str:
    """Eight hex digits, the same for equal settings, independent of the order of their keys."""
    text = dump_json(_normalize_numbers(settings), sort_keys=True)
    return blake2b(text.encode(), digest_size=4).hexdigest()


def describe_differences(there: JsonObject, here: JsonObject) -> Iterator[str]:
    """Yield `temperature: 0.2 there, 0.7 here` for every setting that differs."""
    for key, old, new in _excerpt_differences(there, here):
        yield f"{key}: {old} there, {new} here"


def describe_changes(before: JsonObject, after: JsonObject) -> Iterator[str]:
    """Yield `steps 24 -> 200` for every setting that has changed."""
    for key, old, new in _excerpt_differences(before, after):
        yield f"{key} {old} -> {new}"


def _excerpt_differences(old: JsonObject, new: JsonObject) -> Iterator[tuple[str, str, str]]:
    """Yield name and both values; of long values the part where they begin to differ."""
    for key, before, after in compare_settings(old, new)[0]:
        characters = enumerate(zip(before, after, strict=False))
        start = max(0, next((at for at, (a, b) in characters if a != b), 0) - _EXCERPT_LEAD)
        old_text, new_text = (
            text if len(text) <= _EXCERPT_CHARS else f"…{text[start : start + _EXCERPT_CHARS]}…"
            for text in (before, after)
        )
        yield key, old_text, new_text


def compare_settings(there: JsonObject, here: JsonObject) -> tuple[list[tuple[str, str, str]], int]:
    """Compare two configs: the dotted names and values that differ, and how many are equal."""
    old, new = dict(_flatten_config(there)), dict(_flatten_config(here))
    differences = [
        (key, before, after)
        for key in sorted(old | new)
        if (before := old.get(key, _NOT_SET)) != (after := new.get(key, _NOT_SET))
        and not any(other.startswith(f"{key}.") for other in old | new)
    ]
    return differences, sum(new.get(key) == value for key, value in old.items())


def _flatten_config(value: object, key: str = "") -> Iterator[tuple[str, str]]:
    """Yield every leaf of nested settings under its dotted name, as JSON."""
    if isinstance(value, Mapping) and (value or not key):
        for name, item in value.items():
            yield from _flatten_config(item, f"{key}.{name}" if key else str(name))
    else:
        yield key, json.dumps(_normalize_numbers(value), ensure_ascii=False)


def _normalize_numbers(value: Any) -> Any:
    """Convert 1.0 to 1, so that equal numbers from the command line and from TOML compare equal."""
    if isinstance(value, Mapping):
        return {key: _normalize_numbers(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_normalize_numbers(item) for item in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value
