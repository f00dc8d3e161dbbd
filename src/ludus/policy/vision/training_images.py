"""Images in training: the images of rows, rendered as in a rollout, and the inputs of trainers.

Rows are JSON, as `ludus curate` writes them: the content of a message is a string or a list of
parts, and an image is a part with a data URL.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from ludus.data.episode import Episode
from ludus.data.messages import ImagePart, ImageUrl, Part, Text
from ludus.data.tool_schema import JsonObject
from ludus.data.training_row import InvalidRow
from ludus.errors import RunError
from ludus.policy.chat.encoding import Messages
from ludus.policy.chat.rendering import Conversation, RenderedConversation
from ludus.policy.vision.processor import (
    SUPPORTED_FAMILIES,
    ProcessedImage,
    VisionProcessor,
    stack_images,
)

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedModel

_IMAGE_PART_TYPES = ("image_url", "image", "input_image")


def row_has_images(messages: Messages) -> bool:
    """Whether the messages of a row contain an image."""
    contents = (message.get("content") for message in messages)
    parts = (part for content in contents if isinstance(content, list) for part in content)
    return any(
        isinstance(part, Mapping) and part.get("type") in _IMAGE_PART_TYPES for part in parts
    )


def separate_images(
    messages: Messages, vision: VisionProcessor
) -> tuple[list[JsonObject], list[str]]:
    """Split messages into text with image placeholders, and the images' data URLs."""
    texts: list[JsonObject] = []
    urls: list[str] = []
    for message in messages:
        text, content = dict(message), message.get("content")
        if isinstance(content, list):
            parts: list[Part] = []
            for part in content:
                match part:
                    case {"type": "text", "text": str(each)}:
                        parts.append(Text(text=each))
                    case {"type": "image_url", "image_url": {"url": str(url)} | str(url)}:
                        parts.append(ImagePart(image_url=ImageUrl(url=url)))
                    case _:
                        kind = part.get("type") if isinstance(part, Mapping) else None
                        raise InvalidRow(
                            f"has content of type {kind!r}, which is neither text nor an image_url "
                            "with a data URL"
                        )
            urls += [part.image_url.url for part in parts if isinstance(part, ImagePart)]
            text["content"] = vision.parts_to_text(parts)
        texts.append(text)
    return texts, urls


def separate_row_images(
    conversation: Conversation, vision: VisionProcessor | None
) -> tuple[Conversation, Sequence[str]]:
    """Take the images out of the conversation of a row; raise for a model that takes none."""
    if vision is None:
        if row_has_images(conversation.messages):
            raise InvalidRow(
                f"has images, and this model takes only text; use one of {SUPPORTED_FAMILIES}"
            )
        return conversation, ()
    messages, urls = separate_images(conversation.messages, vision)
    return replace(conversation, messages=messages), urls


def expand_image_tokens(
    rendered: RenderedConversation, vision: VisionProcessor, urls: Sequence[str]
) -> RenderedConversation:
    """Repeat each image token as often as its image has tokens; these have no loss.

    `urls` are the images of the whole conversation. Of a truncated row, only images with a
    placeholder left are opened.
    """
    sizes = map(vision.num_image_tokens, urls)
    indices = vision.expanded_indices(rendered.ids, sizes)
    ids = tuple(rendered.ids[index] for index in indices)
    mask = tuple(
        0 if token == vision.image_token_id else rendered.mask[index]
        for token, index in zip(ids, indices, strict=True)
    )
    starts = tuple(rendered.starts[index] for index in indices)
    return replace(rendered, ids=ids, mask=mask, starts=starts)


def image_inputs(
    vision: VisionProcessor, images: Sequence[ProcessedImage], ids: Tensor
) -> dict[str, Tensor]:
    """The model inputs of rows with these images; empty if there are none."""
    if not images:
        return {}
    inputs = {name: value.to(ids.device) for name, value in stack_images(images).items()}
    return {**inputs, "mm_token_type_ids": (ids == vision.image_token_id).long()}


def episode_image_inputs(
    vision: VisionProcessor, episodes: Sequence[Episode], ids: Tensor
) -> dict[str, Any]:
    """Return `pixel_values`, `image_grid_thw`, `num_images` and `mm_token_type_ids`.

    `ids` has a row for each episode: prompt and completion, padded in any way. Empty if no episode
    has an image.
    """
    rows = [images_in_tokens(vision, episode) for episode in episodes]
    inputs = image_inputs(vision, [image for row in rows for image in row], ids)
    return {**inputs, "num_images": [len(row) for row in rows]} if inputs else {}


def images_in_tokens(vision: VisionProcessor, episode: Episode) -> tuple[ProcessedImage, ...]:
    """The images among an episode's ids.

    The model never saw the messages that ended the episode, so their images are not among the ids.
    """
    ids = episode.tokens.ids if episode.tokens is not None else ()
    num_tokens = sum(token == vision.image_token_id for token in ids)
    images = vision.process_messages(episode.messages) if num_tokens else ()
    cumulative = [0, *accumulate(image.num_tokens for image in images)]
    if num_tokens not in cumulative:
        raise RunError(
            f"The tokens of {episode.episode_id} do not match its images. Train on episodes that "
            "this model has played."
        )
    return images[: cumulative.index(num_tokens)]


def drop_empty_image_inputs(model: PreTrainedModel) -> None:
    """Let a model accept the empty tensors that a trainer passes for rows without images."""

    def drop_if_empty(
        model: PreTrainedModel, args: tuple[Tensor, ...], kwargs: dict[str, Tensor]
    ) -> tuple[tuple[Tensor, ...], dict[str, Tensor]]:
        grids = kwargs.get("image_grid_thw")
        if grids is None or len(grids):
            return args, kwargs
        image_names = {"pixel_values", "image_grid_thw", "mm_token_type_ids"}
        return args, {name: value for name, value in kwargs.items() if name not in image_names}

    model.register_forward_pre_hook(drop_if_empty, with_kwargs=True)
