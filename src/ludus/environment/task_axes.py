"""Axes of tasks: arguments of `reset` with the values that they range over.

max_terms=2..5              whole numbers, from easy to hard
difficulty=easy,hard        a list of JSON values, or of words
variant=chain_sum,gcd       variants of the environment
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from ludus.errors import ConfigError

MAX_BUCKETS = 256
"""Each combination of values needs attempts of its own, so that its success rate is known."""
VARIANT = "variant"
_FORMS = "NAME=LOW..HIGH or NAME=VALUE,VALUE"
_RANGE = re.compile(r"\s*(-?\d+)\s*\.\.\s*(-?\d+)\s*")


@dataclass(frozen=True, slots=True)
class TaskAxis:
    """A task argument, or `variant`, and its values from easy to hard."""

    name: str
    values: tuple[Any, ...]


def parse_axes(texts: Sequence[str], *, option: str) -> tuple[TaskAxis, ...]:
    """Parse the axes that `option` has; their buckets are the product of their values."""
    if isinstance(texts, str):
        raise ConfigError(f"`{option}` must be a sequence of texts, got {texts!r} alone.")
    axes = tuple(_parse_axis(text, option) for text in texts)
    names = [axis.name for axis in axes]
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(f"`{option}` names {name} twice. Give all of its values at once.")
    count = prod(len(axis.values) for axis in axes)
    if count > MAX_BUCKETS:
        raise ConfigError(
            f"`{option}` has {count:,} combinations of values, and at most {MAX_BUCKETS} can be "
            "followed. Give fewer values or arguments."
        )
    return axes


def _parse_axis(text: str, option: str) -> TaskAxis:
    name, equals, values_text = (part.strip() for part in text.partition("="))
    if not (name and equals and values_text):
        raise ConfigError(f"`{option}` {text!r} is not of the form {_FORMS}.")
    if name == "seed":
        raise ConfigError(f"`{option}` cannot range over seed: it is drawn for every task.")
    values = _parse_values(f"`{option}` {text!r}", values_text)
    if len(values) == 1:
        raise ConfigError(
            f"`{option}` {text!r} has only one value, so that nothing can be drawn. Give more "
            "values, or set the argument with `task`."
        )
    texts = [format_value(value) for value in values]
    for value in texts:
        if texts.count(value) > 1:
            raise ConfigError(f"`{option}` {text!r} has the value {value} twice.")
    return TaskAxis(name, values)


def _parse_values(where: str, values: str) -> tuple[Any, ...]:
    if (match := _RANGE.fullmatch(values)) is not None:
        low, high = int(match[1]), int(match[2])
        if low > high:
            raise ConfigError(f"{where} is empty: {low} is above {high}. Give the lower end first.")
        if high - low >= MAX_BUCKETS:
            raise ConfigError(f"{where} has more than {MAX_BUCKETS} values. List some of them.")
        return tuple(range(low, high + 1))
    if ".." in values:
        raise ConfigError(f"{where}: the ends of a range must be whole numbers.")
    try:
        return tuple(json.loads(f"[{values}]"))
    except ValueError:
        return tuple(_parse_word(where, word.strip()) for word in values.split(","))


def _parse_word(where: str, word: str) -> Any:
    """A JSON value, or the word itself."""
    if not word:
        raise ConfigError(f"{where} has an empty value.")
    try:
        return json.loads(word)
    except ValueError:
        return word


def format_value(value: Any) -> str:
    """A value as it is typed."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
