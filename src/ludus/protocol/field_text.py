"""Render a field of an observation as text: conversations, arrays, records, images."""

from __future__ import annotations

import json
import re
import struct
import zlib
from collections.abc import Mapping
from itertools import chain
from math import prod
from typing import Any

from ludus.data.messages import Image

_IMAGE_NAME = re.compile(r"screenshot|image|picture|camera|frame|screen|pixels|rgb")
_BASE64 = re.compile(r"[A-Za-z0-9+/\s]+={0,2}\s*")
_MAGIC = {
    "iVBORw0KGgo": "image/png",
    "/9j/": "image/jpeg",
    "R0lGOD": "image/gif",
    "UklGR.{6}XRUJQ": "image/webp",
}
"""Media types by how their first bytes begin in base64."""
_MIN_ENCODED = 64
"""Minimum number of base64 characters of an image."""
_MIN_SIDE = 8
"""Minimum pixels per side of an image; smaller arrays are boards."""
_COLOR_TYPES = {1: 0, 3: 2, 4: 6}
"""PNG's color type by number of channels: grey, RGB, RGBA."""


def find_image(name: str, value: Any, shape: Any = None) -> Image | None:
    """The image that a field of an observation holds as text or as an array, or None."""
    if isinstance(value, str):
        return image_from_text(name, value)
    return image_from_array(name, value, shape) if isinstance(value, list) else None


def image_from_text(name: str, text: str) -> Image | None:
    """The image in a data URL or in base64, or None."""
    if text.startswith("data:image/"):
        head, _, data = text.partition("base64,")
        return Image(data=data, mime_type=head.removeprefix("data:").rstrip(";"))
    if len(text) < _MIN_ENCODED or " " in text[:_MIN_ENCODED]:
        return None
    mime_type = next((kind for magic, kind in _MAGIC.items() if re.match(magic, text)), None)
    if mime_type is None and _IMAGE_NAME.search(name.lower()):
        mime_type = "image/png"
    if mime_type is None or not _BASE64.fullmatch(text):
        return None
    return Image(data=text, mime_type=mime_type)


def image_from_array(name: str, array: Any, shape: Any = None) -> Image | None:
    """The image in nested lists of bytes of shape (height, width, channels), or None.

    `shape` is of a flat list. A two-dimensional array is an image only if the field's name says so;
    otherwise it is a board.
    """
    sizes = dimensions(array)
    if len(sizes) == 1 and isinstance(shape, list):
        sizes = tuple(size for size in shape if isinstance(size, int))
    if len(sizes) == 2 and _IMAGE_NAME.search(name.lower()):
        sizes = (*sizes, 1)
    if len(sizes) != 3 or sizes[2] not in _COLOR_TYPES or min(sizes[:2]) < _MIN_SIDE:
        return None
    try:
        while array and isinstance(array[0], list):
            array = list(chain.from_iterable(array))
        pixels = bytes(array)
    except (TypeError, ValueError):
        return None  # Not integers from 0 to 255.
    height, width, channels = sizes
    if len(pixels) != prod(sizes):
        return None
    return Image.from_bytes(_encode_png(pixels, width, height, channels))


def dimensions(array: Any) -> tuple[int, ...]:
    """The shape of nested lists of numbers, by their first elements; () for anything else."""
    sizes: list[int] = []
    while isinstance(array, list) and array:
        sizes.append(len(array))
        array = array[0]
    is_number = isinstance(array, int | float) and not isinstance(array, bool)
    return tuple(sizes) if is_number else ()


def _encode_png(pixels: bytes, width: int, height: int, channels: int) -> bytes:
    """Encode pixels as PNG without filters, because Pillow is not a dependency."""
    stride = width * channels
    rows = b"".join(b"\0" + pixels[at : at + stride] for at in range(0, height * stride, stride))
    header = struct.pack(">IIBBBBB", width, height, 8, _COLOR_TYPES[channels], 0, 0, 0)
    parts = ((b"IHDR", header), (b"IDAT", zlib.compress(rows)), (b"IEND", b""))
    chunks = (
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        for kind, data in parts
    )
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)


MAX_ARRAY_NUMBERS = 2000
"""Larger arrays are not shown: they would fill the context of the model."""
MAX_ENCODED_CHARS = 10_000
"""Limit of base64 that is not an image; of longer text only the length is shown."""
CATCH_COLUMNS = 5
CATCH_SIZE = 50
"""OpenSpiel's catch is a grid of 10 rows and 5 columns, sent as a flat list."""

NamedImages = list[tuple[str, Image]]

_CHAT_KEYS = {"content", "sender_id", "category", "role", "name", "sender"}
_ENCODED = re.compile(r"[A-Za-z0-9+/=_-]+")


def render_field(name: str, value: Any, observation: Mapping[str, Any], images: NamedImages) -> str:
    """Render a field. Images in it are added to `images`; a field that is an image has no text."""
    shape = observation.get(f"{name}_shape")
    if (image := find_image(name, value, shape)) is not None:
        images.append((name, image))
        return ""
    if isinstance(value, str):
        return _elide_encoded_field(value)
    if is_chat_field(value):
        return "\n".join(_format_field_message(message) for message in value).strip()
    sizes = dimensions(value)
    if prod(sizes) > MAX_ARRAY_NUMBERS:
        return _elided_array(sizes)
    if sizes and _is_regular(value, sizes):
        return _format_array_field(name, value, sizes)
    json_value = _field_to_json(name, value, images)
    if isinstance(value, list) and all(isinstance(item, Mapping) for item in value):
        return "\n".join(_field_json(item) for item in json_value)
    return _field_json(json_value)


def render_json_field(name: str, value: Any, images: NamedImages) -> str:
    """Render text as it is and any other value as JSON; images are added to `images`."""
    if (image := find_image(name, value)) is not None:
        images.append((name, image))
        return ""
    return value if isinstance(value, str) else _field_json(_field_to_json(name, value, images))


def label_field(name: str, text: str) -> str:
    """Put the name of a field before its text."""
    text = text.strip("\n")
    return f"{name}:\n{text}" if "\n" in text else f"{name}: {text}"


def is_chat_field(value: Any) -> bool:
    """Whether a field holds a list of messages, as in TextArena and chat APIs."""
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


def _format_field_message(message: Mapping[str, Any]) -> str:
    """Format a message in a field with its sender; the game itself has a negative id."""
    content = message["content"].strip()
    sender = message.get("sender_id")
    if isinstance(sender, int) and sender >= 0:
        return f"[Player {sender}] {content}"
    speaker = message.get("role") or message.get("sender") or message.get("name")
    return f"[{speaker}] {content}" if speaker else content


def _format_array_field(name: str, array: list[Any], sizes: tuple[int, ...]) -> str:
    """Format an array of numbers: two dimensions as rows, one as a list."""
    is_catch = (
        name == "info_state"
        and sizes == (CATCH_SIZE,)
        # One ball, and one paddle in the last row; both may be in the same cell.
        and set(array) == {0, 1}
        and sum(array) <= 2
        and 1 in array[-CATCH_COLUMNS:]
    )
    if is_catch:
        array = [array[at : at + CATCH_COLUMNS] for at in range(0, CATCH_SIZE, CATCH_COLUMNS)]
        sizes = dimensions(array)
    if len(sizes) == 1:
        return "[" + ", ".join(map(_format_array_number, array)) + "]"
    if len(sizes) == 2:
        return "\n".join(" ".join(map(_format_array_number, row)) for row in array)
    return _field_json(array)


def _is_regular(array: list[Any], sizes: tuple[int, ...]) -> bool:
    """Whether all nested lists have these sizes and hold only numbers."""
    if len(array) != sizes[0]:
        return False
    if len(sizes) == 1:
        return all(isinstance(item, int | float) for item in array)
    return all(isinstance(item, list) and _is_regular(item, sizes[1:]) for item in array)


def _format_array_number(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else _field_json(value)


def _field_to_json(name: str, value: Any, images: NamedImages) -> Any:
    """The JSON of a field without large values and images, which are added to `images`."""
    if (image := find_image(name, value)) is not None:
        images.append((name, image))
        return "[image]"
    if isinstance(value, str):
        return _elide_encoded_field(value)
    if isinstance(value, Mapping):
        return {key: _field_to_json(f"{name}.{key}", item, images) for key, item in value.items()}
    if isinstance(value, list):
        sizes = dimensions(value)
        if prod(sizes) > MAX_ARRAY_NUMBERS:
            return _elided_array(sizes)
        return value if sizes else [_field_to_json(name, item, images) for item in value]
    return value


def _elide_encoded_field(text: str) -> str:
    """The text of a field; of long encoded data only its length."""
    if len(text) > MAX_ENCODED_CHARS and _ENCODED.fullmatch(text):
        return f"[{len(text)} characters of encoded data, not shown]"
    return text


def _elided_array(sizes: tuple[int, ...]) -> str:
    return f"[{' x '.join(map(str, sizes))} numbers, not shown]"


def _field_json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
