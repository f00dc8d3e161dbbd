"""The image processor of a vision-language model, and placeholders for images in its prompts.

Chat templates render text, so an image becomes a short placeholder that every template copies
unchanged: the template need not support images. In the ids, the placeholder's image token is then
repeated as often as the image has tokens. Sampled ids are never changed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import lru_cache
from itertools import groupby
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ludus.data.messages import Message, Part, Text
from ludus.errors import ConfigError, ProviderRefuses, RequestRefused, TemplateUnmarked
from ludus.policy.hf_logging import suppress_hf_logging
from ludus.policy.load_errors import describe_load_error, require_transformers
from ludus.policy.model_ref import ModelKind, ModelRef, resolve_base_model, resolve_model
from ludus.policy.vision.images import ProcessedImage, message_image_urls, open_data_url
from ludus.policy.vision.model_families import (
    IMAGE_PLACEHOLDER,
    IMAGE_TOKEN,
    SUPPORTED_FAMILIES,
    supports_images,
)

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from ludus.policy.chat.chat_format import ChatFormat
    from ludus.policy.load import Policy

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


async def process_images(
    policy: Policy, environment: str, messages: Sequence[Message]
) -> tuple[ProcessedImage, ...]:
    """Process the images in the messages for the policy's model.

    A text-only model meets the images of an environment in every episode, so the first one ends the
    whole run: leaving images out would change the task.
    """
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


def build_vision_processor(
    ref: ModelRef, tokenizer: PreTrainedTokenizerBase, chat_format: ChatFormat
) -> VisionProcessor | None:
    """Build the processor of a vision-language model; None for a text-only model.

    Reads no weights.
    """
    from transformers import AutoConfig

    if ref.kind is ModelKind.ADAPTER:
        return build_vision_processor(resolve_base_model(ref), tokenizer, chat_format)
    config = None
    if ref.kind is not ModelKind.GGUF:
        # Loading the weights reports what is wrong with a config.
        with suppress_hf_logging(), suppress(Exception):
            config = AutoConfig.from_pretrained(ref.path, **ref.loading_kwargs)
    if not supports_images(config):
        return None
    vision = _read_vision_processor(ref, tokenizer, config)
    _check_template_keeps_images(ref, vision, tokenizer, chat_format)
    return vision


def load_vision_processor(name: str, tokenizer: PreTrainedTokenizerBase) -> VisionProcessor | None:
    """Build the processor of the model of that name, given its tokenizer; None if it has none."""
    from ludus.policy.chat.chat_format import find_chat_format_with_fallback

    try:
        chat_format = find_chat_format_with_fallback(tokenizer)
    except TemplateUnmarked:
        return None
    return build_vision_processor(resolve_model(name), tokenizer, chat_format)


def _read_vision_processor(
    ref: ModelRef, tokenizer: PreTrainedTokenizerBase, config: Any
) -> VisionProcessor:
    """Read the image processor of a vision-language model, given the model's config."""
    require_transformers("Using images", "PIL")
    from transformers import AutoImageProcessor

    if tokenizer.convert_tokens_to_ids(IMAGE_TOKEN) != config.image_token_id:
        raise ConfigError(
            f"The id of {IMAGE_TOKEN} in the tokenizer of {ref.name} is not the one in its "
            "config. Name a folder whose tokenizer and config belong together."
        )
    try:
        with suppress_hf_logging():
            image_processor = AutoImageProcessor.from_pretrained(ref.path, **ref.loading_kwargs)
    except Exception as error:
        message = describe_load_error(
            ref.name, "image processor", error, hub_unreachable=ref.hub_unreachable
        )
        raise ConfigError(message) from None
    return VisionProcessor(
        image_processor,
        placeholder=IMAGE_PLACEHOLDER,
        image_token_id=config.image_token_id,
        suppressed_ids=frozenset({config.video_token_id} - {None}),
    )


def _check_template_keeps_images(
    ref: ModelRef,
    vision: VisionProcessor,
    tokenizer: PreTrainedTokenizerBase,
    chat_format: ChatFormat,
) -> None:
    """Raise unless the template writes the placeholder in user messages and tool results."""
    from ludus.policy.chat import incremental_prompt

    text = f"See {vision.placeholder} there."
    user = {"role": "user", "content": text}
    result = {"role": "tool", "content": text, "tool_call_id": "a"}
    prompt = incremental_prompt.initial_prompt_ids(tokenizer, chat_format, [user], None)
    continuation = incremental_prompt.continuation_ids(
        tokenizer, chat_format, [result], None, turn_ended=True
    )
    token = vision.image_token_id
    if not prompt.count(token) == continuation.count(token) == 1:
        raise ConfigError(
            f"The chat template of {ref.name} leaves out images. Use one that writes the content "
            "of messages unchanged."
        )
