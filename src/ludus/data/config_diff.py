"""Compare settings: their digest, and a description of what differs."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from hashlib import blake2b
from itertools import takewhile
from typing import Any

from ludus.data.jsonable import dump_json
from ludus.data.tool_schema import JsonObject

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
        pairs = zip(before, after, strict=False)
        num_equal = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
        start = max(0, num_equal - _EXCERPT_LEAD)
        yield key, _config_value_excerpt(before, start), _config_value_excerpt(after, start)


def compare_settings(there: JsonObject, here: JsonObject) -> tuple[list[tuple[str, str, str]], int]:
    """The settings that differ, as dotted name and both values in JSON; and how many are equal."""
    old, new = dict(_flatten_config(there)), dict(_flatten_config(here))
    differences = [
        (key, before, after)
        for key in sorted(old | new)
        if (before := old.get(key, _NOT_SET)) != (after := new.get(key, _NOT_SET))
        and not any(other.startswith(f"{key}.") for other in old | new)
    ]
    return differences, sum(new.get(key) == value for key, value in old.items())


def _flatten_config(value: Any, key: str = "") -> Iterator[tuple[str, str]]:
    """Yield every leaf of nested settings under its dotted name, as JSON."""
    if isinstance(value, Mapping) and (value or not key):
        for name, item in value.items():
            yield from _flatten_config(item, f"{key}.{name}" if key else str(name))
    else:
        yield key, json.dumps(_normalize_numbers(value), ensure_ascii=False)


def _config_value_excerpt(text: str, start: int) -> str:
    """At most `_EXCERPT_CHARS` characters of a setting's value, from `start` on."""
    if len(text) <= _EXCERPT_CHARS:
        return text
    start = min(start, len(text) - _EXCERPT_CHARS)
    end = start + _EXCERPT_CHARS
    return f"{'…' if start else ''}{text[start:end]}{'…' if end < len(text) else ''}"


def _normalize_numbers(value: Any) -> Any:
    """Convert 1.0 to 1, so that equal numbers from the command line and from TOML compare equal."""
    if isinstance(value, Mapping):
        return {key: _normalize_numbers(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_normalize_numbers(item) for item in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value
