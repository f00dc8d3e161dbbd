"""The axes of a curriculum: task arguments with the values that they range over.

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
"""Each bucket needs attempts from time to time, so that its success rate is known."""
VARIANT = "variant"
_FORMS = "NAME=LOW..HIGH or NAME=VALUE,VALUE"
_RANGE = re.compile(r"\s*(-?\d+)\s*\.\.\s*(-?\d+)\s*")


@dataclass(frozen=True, slots=True)
class CurriculumAxis:
    """A task argument, or `variant`, and its values from easy to hard."""

    name: str
    values: tuple[Any, ...]


def parse_curriculum(texts: Sequence[str]) -> tuple[CurriculumAxis, ...]:
    """Parse the axes of a curriculum; its buckets are the product of their values."""
    if isinstance(texts, str):
        raise ConfigError(f"`curriculum` must be a sequence of texts, got {texts!r} alone.")
    axes = tuple(map(_parse_axis, texts))
    names = [axis.name for axis in axes]
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(f"`curriculum` names {name} twice. Give all of its values at once.")
    count = prod(len(axis.values) for axis in axes)
    if count > MAX_BUCKETS:
        raise ConfigError(
            f"`curriculum` has {count:,} combinations of values, and at most {MAX_BUCKETS} can be "
            "followed. Give fewer values or arguments."
        )
    return axes


def _parse_axis(text: str) -> CurriculumAxis:
    name, equals, values_text = (part.strip() for part in text.partition("="))
    if not (name and equals and values_text):
        raise ConfigError(f"`curriculum` {text!r} is not of the form {_FORMS}.")
    if name == "seed":
        raise ConfigError("`curriculum` cannot range over seed: it is drawn for every task.")
    values = _parse_values(text, values_text)
    if len(values) == 1:
        raise ConfigError(
            f"`curriculum` {text!r} has only one value, so that nothing can be drawn. Give more "
            "values, or set the argument with `task`."
        )
    texts = [format_value(value) for value in values]
    for value in texts:
        if texts.count(value) > 1:
            raise ConfigError(f"`curriculum` {text!r} has the value {value} twice.")
    return CurriculumAxis(name, values)


def _parse_values(text: str, values: str) -> tuple[Any, ...]:
    if (match := _RANGE.fullmatch(values)) is not None:
        low, high = int(match[1]), int(match[2])
        if low > high:
            raise ConfigError(
                f"`curriculum` {text!r} is empty: {low} is above {high}. Give the lower end first."
            )
        if high - low >= MAX_BUCKETS:
            raise ConfigError(
                f"`curriculum` {text!r} has more than {MAX_BUCKETS} values. List some of them."
            )
        return tuple(range(low, high + 1))
    if ".." in values:
        raise ConfigError(f"`curriculum` {text!r}: the ends of a range must be whole numbers.")
    try:
        return tuple(json.loads(f"[{values}]"))
    except ValueError:
        return tuple(_parse_word(text, word.strip()) for word in values.split(","))


def _parse_word(text: str, word: str) -> Any:
    """A JSON value, or the word itself."""
    if not word:
        raise ConfigError(f"`curriculum` {text!r} has an empty value.")
    try:
        return json.loads(word)
    except ValueError:
        return word


def format_value(value: Any) -> str:
    """A value as it is typed."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
