"""Find images in observations: base64 text and arrays of pixels."""

from __future__ import annotations

import base64
import binascii
import re
import struct
import zlib
from itertools import chain
from math import prod
from typing import Any

from ludus.data.messages import Image

_IMAGE_NAME = re.compile(r"screenshot|image|picture|camera|frame|screen|pixels|rgb")
_BASE64 = re.compile(r"[A-Za-z0-9+/\s]+={0,2}\s*")
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
    mime_type = _sniff_mime_type(text)
    if mime_type is None and _IMAGE_NAME.search(name.lower()):
        mime_type = "image/png"
    if mime_type is None or not _BASE64.fullmatch(text):
        return None
    return Image(data=text, mime_type=mime_type)


def _sniff_mime_type(text: str) -> str | None:
    """The media type by the magic number of base64 data, or None."""
    try:
        first = base64.b64decode(text[:16], validate=True)
    except (binascii.Error, ValueError):
        return None
    if first.startswith(b"\x89PNG"):
        return "image/png"
    if first.startswith(b"\xff\xd8\xff"):
        return "image/jpeg"
    if first.startswith(b"GIF8"):
        return "image/gif"
    return "image/webp" if first[:4] == b"RIFF" and first[8:] == b"WEBP" else None


def image_from_array(name: str, array: Any, shape: Any = None) -> Image | None:
    """The image in nested lists of bytes of shape (height, width, channels), or None.

    `shape` is that of a flat list. An array of two dimensions is an image only if the name of the
    field says so; otherwise it is a board.
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
    """The shape of nested lists of numbers, by the first element of each; else empty."""
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
