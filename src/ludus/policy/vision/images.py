"""The pictures of a conversation: where they stand in it, and what is in them.

How a picture is cut into patches for a model is `ludus.policy.vision.processor`'s business.
"""

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
    """A picture as a model takes it in."""

    pixel_values: Any
    """A row of numbers for each patch."""
    grid_thw: tuple[int, int, int]
    """How many patches follow each other in time, from top to bottom and from left to right."""
    num_tokens: int
    """How many placeholders stand for it among a prompt's ids."""


def message_image_urls(messages: Iterable[Message]) -> list[str]:
    """The addresses of all pictures, in the order in which they are seen."""
    return [
        part.image_url.url
        for message in messages
        if not isinstance(message.content, str)
        for part in message.content
        if isinstance(part, ImagePart)
    ]


def open_data_url(url: str) -> Any:
    """The picture in a data URL. Nothing is fetched: an episode has to be the same tomorrow."""
    from PIL import Image

    if not url.startswith(_DATA_SCHEME):
        raise RequestRefused(
            f"The environment shows a picture by its address ({url[:60]}), and a local model does "
            "not fetch it. Have the environment send the picture itself."
        )
    try:
        image = Image.open(BytesIO(base64.b64decode(url.partition(",")[2], validate=True)))
        image.load()
    except Exception as error:
        raise RequestRefused(
            f"The environment shows a picture that cannot be opened ({error}). Have it send a "
            "whole PNG or JPEG."
        ) from None
    return image


def stack_images(images: Sequence[ProcessedImage]) -> dict[str, Any]:
    """One after the other, as a model's forward pass takes them; nothing if there are none."""
    import torch

    if not images:
        return {}
    return {
        "pixel_values": torch.cat([picture.pixel_values for picture in images]),
        "image_grid_thw": torch.tensor([picture.grid_thw for picture in images]),
    }
