"""Images for vision-language models: their patches, and placeholders for them in prompts.

All supported models split an image into a grid of patches, with a placeholder token for each block
of them. Chat templates render text, so an image becomes a short placeholder that every template
copies unchanged. In the ids, its image token is then repeated as often as the image has tokens.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from io import BytesIO
from itertools import groupby
from math import prod
from typing import TYPE_CHECKING

from ludus.data.messages import ImagePart, Message, Part, Text
from ludus.errors import ProviderRefuses, RequestRefused
from ludus.policy.hf_loading import require_transformers, suppress_hf_logging
from ludus.policy.model_ref import (
    ModelKind,
    ModelRef,
    model_load_error,
    resolve_base_model,
    resolve_model,
)

if TYPE_CHECKING:
    from PIL.Image import Image
    from torch import Tensor
    from transformers import BaseImageProcessor, PretrainedConfig

    from ludus.policy.load import Policy

VISION_FAMILIES = {
    "qwen2_vl": "Qwen2-VL",
    "qwen2_5_vl": "Qwen2.5-VL",
    "qwen3_vl": "Qwen3-VL",
    "qwen3_vl_moe": "Qwen3-VL",
}
"""Names of the families by the `model_type` of their configs."""
SUPPORTED_FAMILIES = ", ".join(dict.fromkeys(VISION_FAMILIES.values()))

IMAGE_TOKEN = "<|image_pad|>"
IMAGE_PLACEHOLDER = f"<|vision_start|>{IMAGE_TOKEN}<|vision_end|>"
"""Stands for an image in the text of a prompt; the image token is in its middle."""
IMAGE_CACHE_SIZE = 64
"""Images whose patches are cached: all attempts at a task begin with the same one."""


def supports_images(config: PretrainedConfig | None) -> bool:
    """Whether a model with this config is a supported vision-language model."""
    model_type = getattr(config, "model_type", None)
    return model_type in VISION_FAMILIES and hasattr(config, "image_token_id")


@dataclass(frozen=True, slots=True, eq=False)
class ProcessedImage:
    """An image as patches, ready for a model."""

    pixel_values: Tensor
    """[patches, values per patch]."""
    grid_thw: tuple[int, int, int]
    """Number of patches in time, height and width."""
    num_tokens: int
    """Number of placeholder tokens in the prompt."""


def message_image_urls(messages: Iterable[Message]) -> list[str]:
    """The URLs of all images, in order of appearance."""
    contents = [message.content for message in messages if not isinstance(message.content, str)]
    parts = [part for content in contents for part in content]
    return [part.image_url.url for part in parts if isinstance(part, ImagePart)]


def open_data_url(url: str) -> Image:
    """Open the image of a data URL. Remote images are rejected: episodes must be reproducible."""
    from PIL import Image

    if not url.startswith("data:"):
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


def stack_images(images: Sequence[ProcessedImage]) -> dict[str, Tensor]:
    """Concatenate images into the inputs of a forward pass; empty if there are none."""
    import torch

    if not images:
        return {}
    return {
        "pixel_values": torch.cat([image.pixel_values for image in images]),
        "image_grid_thw": torch.tensor([image.grid_thw for image in images]),
    }


@dataclass(slots=True, eq=False)
class VisionProcessor:
    """Converts images and messages for one model."""

    image_processor: BaseImageProcessor
    """The model's image processor of transformers."""
    image_token_id: int
    """The token of the placeholder that is repeated for each part of an image."""
    suppressed_ids: frozenset[int] = frozenset()
    """Tokens that stand for visual input and must not be sampled."""
    _processed: dict[str, ProcessedImage] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.suppressed_ids |= {self.image_token_id}

    def process_messages(self, messages: Sequence[Message]) -> tuple[ProcessedImage, ...]:
        """Process all images in the messages, in their order. Thread-safe."""
        return self.process_urls(message_image_urls(messages))

    def process_urls(self, urls: Iterable[str]) -> tuple[ProcessedImage, ...]:
        """Process the images of these data URLs, in their order."""
        images = []
        for url in urls:
            image = self._processed.get(url)
            if image is None:
                opened = open_data_url(url)
                try:
                    inputs = self.image_processor(images=[opened], return_tensors="pt")
                except Exception as error:
                    raise _processing_error(opened, error) from None
                grid = tuple(inputs["image_grid_thw"][0].tolist())
                num_tokens = prod(grid) // self.image_processor.merge_size**2
                image = ProcessedImage(inputs["pixel_values"], grid, num_tokens)
                if len(self._processed) >= IMAGE_CACHE_SIZE:
                    self._processed.clear()
                self._processed[url] = image
            images.append(image)
        return tuple(images)

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

    def parts_to_text(self, parts: Sequence[Part]) -> str:
        """Join texts by line breaks, and replace each image by the placeholder."""
        groups = groupby(parts, key=lambda part: isinstance(part, Text))
        return "".join(
            "\n".join(part.text for part in group if isinstance(part, Text))
            if is_text
            else IMAGE_PLACEHOLDER * len(list(group))
            for is_text, group in groups
        )

    def check_placeholders(self, ids: Sequence[int], num_images: int) -> None:
        """Raise if a prompt's image tokens do not match its images."""
        number = sum(token == self.image_token_id for token in ids)
        if number != num_images:
            raise RequestRefused(
                f"The prompt has {num_images} images, but {number} image tokens. Leave "
                f"{IMAGE_PLACEHOLDER} out of messages, and use a chat template that writes their "
                "content unchanged."
            )

    def expand_placeholders(
        self, ids: Sequence[int], images: Sequence[ProcessedImage]
    ) -> list[int]:
        """Repeat each image token as often as its image has tokens."""
        self.check_placeholders(ids, len(images))
        return [ids[at] for at in self.expanded_indices(ids, [each.num_tokens for each in images])]

    def expanded_indices(self, ids: Sequence[int], sizes: Iterable[int]) -> list[int]:
        """The index of each token, of image tokens as often as their images have tokens."""
        remaining = iter(sizes)
        counts = [next(remaining) if token == self.image_token_id else 1 for token in ids]
        return [index for index, count in enumerate(counts) for _ in range(count)]


def _processing_error(image: Image, error: Exception) -> RequestRefused:
    return RequestRefused(
        f"The environment shows an image of {image.width}x{image.height} that this model cannot "
        f"process: {error}"
    )


async def process_images(
    policy: Policy, environment: str, messages: Sequence[Message]
) -> tuple[ProcessedImage, ...]:
    """Process the images in the messages; the first one ends the run of a text-only model."""
    if not message_image_urls(messages):
        return ()
    if policy.vision is None:
        raise ProviderRefuses(
            f"{environment} shows images, and {policy.name} reads only text. Use a vision model "
            f"({SUPPORTED_FAMILIES}, or one of the provider openai), or an environment without "
            "images."
        )
    # In a thread: preprocessing would block the event loop, which serves other episodes.
    return await asyncio.to_thread(policy.vision.process_messages, messages)


def load_vision_processor(model: str | ModelRef) -> VisionProcessor | None:
    """Load the processor of a vision-language model, but no weights; None for a text-only model."""
    from transformers import AutoConfig, AutoImageProcessor

    ref = resolve_model(model) if isinstance(model, str) else model
    if ref.kind is ModelKind.ADAPTER:
        return load_vision_processor(resolve_base_model(ref))
    config = None
    # Loading the weights reports what is wrong with a config.
    with suppress_hf_logging(), suppress(Exception):
        config = AutoConfig.from_pretrained(ref.path, **ref.loading_kwargs)
    if config is None or not supports_images(config):
        return None
    require_transformers("Using images", "PIL")
    try:
        with suppress_hf_logging():
            image_processor = AutoImageProcessor.from_pretrained(ref.path, **ref.loading_kwargs)
    except Exception as error:
        raise model_load_error(ref, "image processor", error) from None
    return VisionProcessor(
        image_processor,
        image_token_id=config.image_token_id,
        suppressed_ids=frozenset({config.video_token_id} - {None}),
    )
