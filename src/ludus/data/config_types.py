"""The types and ranges of a config's fields, checked when it is constructed.

A value of another type would be noticed late, by an operation that does not name the field.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from functools import cache
from numbers import Integral, Real
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin

from ludus.errors import ConfigError, did_you_mean

_MAX_VALUE_CHARS = 200
_NUMBERS: Mapping[Any, type] = {int: Integral, float: Real}


def check_field_types(config: Any, *, prefix: str = "") -> None:
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
        choices = [choice for each in alternatives for choice in _choices(each)]
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
    bases = reversed(config.__mro__)
    return {
        name: _plain(hint)
        for base in bases
        for name, hint in inspect.get_annotations(base, eval_str=True).items()
    }


def _plain(hint: Any) -> Any:
    """The type of `Annotated[type, ...]`."""
    return hint.__origin__ if hasattr(hint, "__metadata__") else hint


def _choices(hint: Any) -> tuple[str, ...]:
    return get_args(hint) if get_origin(hint) is Literal else ()


def _fits(value: Any, hint: Any) -> bool:
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
