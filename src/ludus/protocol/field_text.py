"""One field of an observation as text: conversations, boards, records, and what is too large."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from math import prod
from typing import Any

from ludus.data.content import Image
from ludus.protocol.observation_images import dimensions, image_from_array, image_from_text

MAX_ARRAY_NUMBERS = 2000
"""A larger array says nothing to a model and would fill its context."""
MAX_ENCODED_CHARS = 10_000
"""Characters of base64 that is no image, from which only the length is told."""
CATCH_COLUMNS = 5
CATCH_SIZE = 50
"""OpenSpiel's catch is a grid of 10 rows and 5 columns, sent as a flat list."""

NamedImages = list[tuple[str, Image]]

_CHAT_KEYS = {"content", "sender_id", "category", "role", "name", "sender"}
_ENCODED = re.compile(r"[A-Za-z0-9+/=_-]+")


def render_field(name: str, value: Any, observation: Mapping[str, Any], images: NamedImages) -> str:
    """The text of a field. Images in it are added to `images`; an image alone leaves no text."""
    shape = observation.get(f"{name}_shape")
    if (image := _find_image(name, value, shape)) is not None:
        images.append((name, image))
        return ""
    if isinstance(value, str):
        return _elide_encoded(value)
    if is_chat(value):
        return "\n".join(_format_message(message) for message in value).strip()
    sizes = dimensions(value)
    if prod(sizes) > MAX_ARRAY_NUMBERS:
        return _elided_array(sizes)
    if sizes and _is_regular(value, sizes):
        return _format_array(name, value, sizes)
    readable = _to_json_value(name, value, images)
    if isinstance(value, list) and all(isinstance(item, Mapping) for item in value):
        return "\n".join(_json(item) for item in readable)
    return _json(readable)


def render_json_field(name: str, value: Any, images: NamedImages) -> str:
    """Text as it is and any other value as JSON; images in it are added to `images`."""
    if (image := _find_image(name, value)) is not None:
        images.append((name, image))
        return ""
    return value if isinstance(value, str) else _json(_to_json_value(name, value, images))


def label_field(name: str, text: str) -> str:
    """A field under its name."""
    text = text.strip("\n")
    return f"{name}:\n{text}" if "\n" in text else f"{name}: {text}"


def is_chat(value: Any) -> bool:
    """Whether these are messages, as TextArena and chat APIs have them."""
    return (
        isinstance(value, list)
        and bool(value)
        and all(
            isinstance(message, Mapping)
            and isinstance(message.get("content"), str)
            and message.keys() <= _CHAT_KEYS
            for message in value
        )
    )


def _format_message(message: Mapping[str, Any]) -> str:
    """One message, after its sender; the game itself (a negative id) needs no name."""
    content = message["content"].strip()
    sender = message.get("sender_id")
    if isinstance(sender, int) and sender >= 0:
        return f"[Player {sender}] {content}"
    speaker = message.get("role") or message.get("sender") or message.get("name")
    return f"[{speaker}] {content}" if speaker else content


def _format_array(name: str, array: list[Any], sizes: tuple[int, ...]) -> str:
    """Numbers: two dimensions as rows, one as a list."""
    if name == "info_state" and _is_catch(array):
        array = [array[at : at + CATCH_COLUMNS] for at in range(0, CATCH_SIZE, CATCH_COLUMNS)]
        sizes = dimensions(array)
    if len(sizes) == 1:
        return "[" + ", ".join(map(_format_number, array)) + "]"
    if len(sizes) == 2:
        return "\n".join(" ".join(map(_format_number, row)) for row in array)
    return _json(array)


def _is_regular(array: list[Any], sizes: tuple[int, ...]) -> bool:
    """Whether all of the nested lists have these sizes, and only numbers in them."""
    if len(array) != sizes[0]:
        return False
    if len(sizes) == 1:
        return all(isinstance(item, int | float) for item in array)
    return all(isinstance(item, list) and _is_regular(item, sizes[1:]) for item in array)


def _is_catch(values: list[Any]) -> bool:
    """One ball and one paddle, which is in the last row; they may stand on one cell."""
    return (
        len(values) == CATCH_SIZE
        and not isinstance(values[0], list)
        and set(values) == {0, 1}
        and sum(values) <= 2
        and 1 in values[-CATCH_COLUMNS:]
    )


def _format_number(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else _json(value)


def _to_json_value(name: str, value: Any, images: NamedImages) -> Any:
    """A value for JSON, with images taken out of it and without what is too large."""
    if (image := _find_image(name, value)) is not None:
        images.append((name, image))
        return "[image]"
    if isinstance(value, str):
        return _elide_encoded(value)
    if isinstance(value, Mapping):
        return {key: _to_json_value(f"{name}.{key}", item, images) for key, item in value.items()}
    if isinstance(value, list):
        sizes = dimensions(value)
        if prod(sizes) > MAX_ARRAY_NUMBERS:
            return _elided_array(sizes)
        return value if sizes else [_to_json_value(name, item, images) for item in value]
    return value


def _find_image(name: str, value: Any, shape: Any = None) -> Image | None:
    if isinstance(value, str):
        return image_from_text(name, value)
    return image_from_array(name, value, shape) if isinstance(value, list) else None


def _elide_encoded(text: str) -> str:
    if len(text) > MAX_ENCODED_CHARS and _ENCODED.fullmatch(text):
        return f"[{len(text)} characters of encoded data, not shown]"
    return text


def _elided_array(sizes: tuple[int, ...]) -> str:
    return f"[{' x '.join(map(str, sizes))} numbers, not shown]"


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
