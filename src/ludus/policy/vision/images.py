"""Images of a conversation: where they occur, and how to open them."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from io import BytesIO
from typing import Any

from ludus.data.messages import ImagePart, Message
from ludus.errors import RequestRefused

_DATA_SCHEME = "data:"


@dataclass(frozen=True, slots=True, eq=False)
class ProcessedImage:
    """An image as patches, ready for a model."""

    pixel_values: Any
    """[patches, values per patch]."""
    grid_thw: tuple[int, int, int]
    """Number of patches in time, height and width."""
    num_tokens: int
    """Number of placeholder tokens in the prompt."""


def message_image_urls(messages: Iterable[Message]) -> list[str]:
    """Return the URLs of all images, in order of appearance."""
    return [
        part.image_url.url
        for message in messages
        if not isinstance(message.content, str)
        for part in message.content
        if isinstance(part, ImagePart)
    ]


def open_data_url(url: str) -> Any:
    """Open the image of a data URL.

    Remote images are rejected: an episode must be reproducible.
    """
    from PIL import Image

    if not url.startswith(_DATA_SCHEME):
        raise RequestRefused(
            f"The environment shows an image by its URL ({url[:60]}), which Ludus does not "
            "download. Let the environment send a data URL."
        )
    try:
        image = Image.open(BytesIO(base64.b64decode(url.partition(",")[2], validate=True)))
        image.load()
    except Exception as error:
        raise RequestRefused(
            f"The environment shows an image that cannot be opened ({error}). Let it send a "
            "complete PNG or JPEG."
        ) from None
    return image


def stack_images(images: Sequence[ProcessedImage]) -> dict[str, Any]:
    """Concatenate images for a model's forward pass; empty if there are none."""
    import torch

    if not images:
        return {}
    return {
        "pixel_values": torch.cat([image.pixel_values for image in images]),
        "image_grid_thw": torch.tensor([image.grid_thw for image in images]),
    }
