"""Images in observations, as base64 and as arrays of pixels."""

from __future__ import annotations

import base64
import io
from typing import Any

import pytest
from PIL import Image as Pictures

from ludus.data.messages import Image
from ludus.protocol.field_text import image_from_array, image_from_text


def opened(image: Image | None) -> Any:
    assert image is not None
    return Pictures.open(io.BytesIO(base64.b64decode(image.data)))


@pytest.mark.parametrize(("kind", "mime_type"), [("PNG", "image/png"), ("JPEG", "image/jpeg")])
def test_base64_is_recognized_by_its_first_bytes_whatever_the_field_is_called(
    kind: str, mime_type: str
) -> None:
    buffer = io.BytesIO()
    Pictures.new("RGB", (16, 16), "red").save(buffer, kind)
    image = image_from_text("observation", base64.b64encode(buffer.getvalue()).decode())
    assert image is not None and image.mime_type == mime_type
    assert opened(image).size == (16, 16)


def test_text_is_text_also_in_a_field_that_is_called_image() -> None:
    for text in ("cats", "https://example.org/cat.png", "a cat on a mat, " * 10):
        assert image_from_text("image", text) is None
    assert image_from_text("code", "ABCD" * 100) is None
    assert image_from_text("screenshot", "ABCD" * 100) is not None


@pytest.mark.parametrize(("channels", "mode"), [(3, "RGB"), (4, "RGBA")])
def test_pixels_become_a_png_with_the_same_pixels(channels: int, mode: str) -> None:
    array = [[[row, column, 7, 200][:channels] for column in range(12)] for row in range(9)]
    picture = opened(image_from_array("view", array))
    assert (picture.size, picture.mode) == ((12, 9), mode)
    assert picture.getpixel((5, 8)) == (8, 5, 7, 200)[:channels]


def test_a_flat_array_is_an_image_where_its_shape_is_told() -> None:
    flat = [value % 256 for value in range(10 * 8 * 3)]
    assert opened(image_from_array("screen", flat, [10, 8, 3])).size == (8, 10)
    assert image_from_array("screen", flat, [10, 8, 4]) is None
    assert image_from_array("screen", flat) is None


def test_two_dimensions_are_a_grey_image_only_by_name() -> None:
    grid = [[0] * 10 for _ in range(20)]
    assert opened(image_from_array("frame", grid)).mode == "L"
    assert image_from_array("board", grid) is None


@pytest.mark.parametrize(
    "array",
    [
        [[[0.5, 0.5, 0.5]] * 9] * 9,
        [[[0, 0, 300]] * 9] * 9,
        [[[0, 0, 0]] * 9] * 8 + [[[0, 0, 0]]],
        [[[0, 0, 0]] * 3] * 3,
        [[["x"] * 3] * 9] * 9,
        [],
    ],
)
def test_other_arrays_are_no_images(array: Any) -> None:
    assert image_from_array("screenshot", array) is None
