"""Image preprocessing for a vision-language model, and placeholders for images in its prompts.

Chat templates render text, so an image becomes a short placeholder that every template copies
unchanged: the template need not support images. In the ids, the placeholder's image token is then
repeated as often as the image has tokens. Sampled ids are never changed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import groupby
from math import prod
from pathlib import Path
from typing import Any

from ludus.data.content import Text
from ludus.data.messages import Message, Part
from ludus.errors import RequestRefused
from ludus.policy.vision.images import ProcessedImage, message_image_urls, open_data_url

IMAGE_CACHE_SIZE = 64
"""Images whose patches are cached: all attempts at a task begin with the same one."""


class VisionProcessor:
    """Converts images and messages for one model.

    Args:
        image_processor: The model's image processor of transformers.
        placeholder: Stands for an image in a text.
        image_token_id: The token of the placeholder that is repeated for each part of the image.
        suppressed_ids: Other tokens that stand for visual input and must not be sampled.
    """

    def __init__(
        self,
        image_processor: Any,
        *,
        placeholder: str,
        image_token_id: int,
        suppressed_ids: frozenset[int] = frozenset(),
    ) -> None:
        self.image_processor = image_processor
        self.placeholder = placeholder
        self.image_token_id = image_token_id
        self.suppressed_ids = suppressed_ids | {image_token_id}
        self._process_url_cached = lru_cache(IMAGE_CACHE_SIZE)(self._process_url)

    def process_messages(self, messages: Sequence[Message]) -> tuple[ProcessedImage, ...]:
        """Process all images in the messages, in their order. Thread-safe."""
        return self.process_urls(message_image_urls(messages))

    def process_urls(self, urls: Iterable[str]) -> tuple[ProcessedImage, ...]:
        """Process the images of these data URLs, in their order."""
        return tuple(map(self._process_url_cached, urls))

    def num_image_tokens(self, url: str) -> int:
        """Return the number of tokens of an image without computing its patches."""
        image = open_data_url(url)
        try:
            patches = self.image_processor.get_number_of_image_patches(
                image.height, image.width, {}
            )
        except Exception as error:
            raise _processing_error(image, error) from None
        return int(patches // self.image_processor.merge_size**2)

    def message_to_text(self, message: Message) -> Message:
        """Return the message as text, with a placeholder for each image."""
        if isinstance(message.content, str):
            return message
        return message.model_copy(update={"content": self.parts_to_text(message.content)})

    def expand_placeholders(
        self, ids: Sequence[int], images: Sequence[ProcessedImage]
    ) -> list[int]:
        """Repeat each image token as often as its image has tokens."""
        if sum(token == self.image_token_id for token in ids) != len(images):
            raise RequestRefused(
                f"The environment writes {self.placeholder} in its text, which this model takes "
                "for an image. Let the environment leave it out."
            )
        remaining = iter(images)
        expanded: list[int] = []
        for token in ids:
            count = next(remaining).num_tokens if token == self.image_token_id else 1
            expanded += [token] * count
        return expanded

    def save(self, folder: Path | str) -> None:
        """Save the image processor beside the model's weights, which need it."""
        self.image_processor.save_pretrained(str(folder))

    def parts_to_text(self, parts: Sequence[Part]) -> str:
        """Join texts by line breaks, and replace each image by the placeholder."""
        groups = groupby(parts, key=lambda part: isinstance(part, Text))
        return "".join(
            "\n".join(part.text for part in group if isinstance(part, Text))
            if is_text
            else self.placeholder * len(list(group))
            for is_text, group in groups
        )

    def _process_url(self, url: str) -> ProcessedImage:
        image = open_data_url(url)
        try:
            inputs = self.image_processor(images=[image], return_tensors="pt")
        except Exception as error:
            raise _processing_error(image, error) from None
        time, height, width = inputs["image_grid_thw"][0].tolist()
        num_tokens = prod((time, height, width)) // self.image_processor.merge_size**2
        return ProcessedImage(inputs["pixel_values"], (time, height, width), num_tokens)

    def __getstate__(self) -> dict[str, Any]:
        """Pickle without the cache, for worker processes that are spawned."""
        return {name: value for name, value in vars(self).items() if name != "_process_url_cached"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._process_url_cached = lru_cache(IMAGE_CACHE_SIZE)(self._process_url)


def _processing_error(image: Any, error: Exception) -> RequestRefused:
    return RequestRefused(
        f"The environment shows an image of {image.width}x{image.height} that this model cannot "
        f"process: {error}"
    )
