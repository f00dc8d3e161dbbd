"""Compare settings: their digest, and a description of what differs."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from hashlib import blake2b
from itertools import takewhile
from typing import Any

from ludus.data.tool_schema import JsonObject
from ludus.errors import RunError

_EXCERPT_CHARS = 60
_EXCERPT_LEAD = 20
_NOT_SET = "not set"


def config_digest(settings: JsonObject) -> str:
    """Eight hex digits, the same for equal settings, independent of the order of their keys."""
    text = dump_json(_normalize_numbers(settings), sort_keys=True)
    return blake2b(text.encode(), digest_size=4).hexdigest()


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


def describe_differences(there: JsonObject, here: JsonObject) -> Iterator[str]:
    """Yield `temperature: 0.2 there, 0.7 here` for every setting that differs."""
    old, new = dict(_flatten_config(there)), dict(_flatten_config(here))
    for key in sorted(old | new):
        before, after = old.get(key, _NOT_SET), new.get(key, _NOT_SET)
        if before != after and not any(other.startswith(f"{key}.") for other in old | new):
            pairs = zip(before, after, strict=False)
            num_equal = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
            start = max(0, num_equal - _EXCERPT_LEAD)
            old_text, new_text = _value_excerpt(before, start), _value_excerpt(after, start)
            yield f"{key}: {old_text} there, {new_text} here"


def _flatten_config(value: Any, key: str = "") -> Iterator[tuple[str, str]]:
    """Yield every leaf of nested settings under its dotted name, as JSON."""
    if isinstance(value, Mapping) and (value or not key):
        for name, item in value.items():
            yield from _flatten_config(item, f"{key}.{name}" if key else str(name))
    else:
        yield key, json.dumps(_normalize_numbers(value), ensure_ascii=False)


def _value_excerpt(text: str, start: int) -> str:
    """At most `_EXCERPT_CHARS` characters of a text, from `start` on."""
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
