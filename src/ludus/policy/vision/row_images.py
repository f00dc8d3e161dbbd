"""Images in training rows, rendered for a vision-language model.

Rows are JSON, as `ludus curate` writes them: the content of a message is a string or a list of
parts, and an image is a part with a data URL. A row is rendered as the policy sees it in a rollout:
with a placeholder for each image, expanded in the ids to the number of the image's tokens.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ludus.data.messages import ImagePart, ImageUrl, Part, Text
from ludus.data.tool_schema import JsonObject
from ludus.errors import RequestRefused
from ludus.policy.chat.rendering import Conversation, RenderedConversation
from ludus.policy.vision.model_families import SUPPORTED_FAMILIES
from ludus.policy.vision.processor import VisionProcessor

IMAGE_PART_TYPES = ("image_url", "image", "input_image")
"""Values of `type` for image parts."""
_URL_KEYS = ("image_url", "image", "url")
"""Keys under which an image part may hold its URL."""


class ContentPartError(ValueError):
    """Content that the model cannot be trained on. The message continues the location of a row."""


def row_has_parts(messages: Iterable[Mapping[str, Any]]) -> bool:
    """Whether the content of one of a row's messages is a list of parts."""
    return any(isinstance(message.get("content"), list) for message in messages)


def row_has_images(messages: Iterable[Mapping[str, Any]]) -> bool:
    """Whether the messages of a row contain an image."""
    contents = (message.get("content") for message in messages)
    parts = (part for content in contents if isinstance(content, list) for part in content)
    return any(isinstance(part, Mapping) and part.get("type") in IMAGE_PART_TYPES for part in parts)


def row_image_urls(messages: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return the URLs of all images in a row's messages, in order of appearance."""
    parts = (part for message in messages for part in _parse_row_parts(message))
    return [part.image_url.url for part in parts if isinstance(part, ImagePart)]


def to_text_messages(
    messages: Iterable[Mapping[str, Any]], vision: VisionProcessor
) -> list[JsonObject]:
    """Convert messages to text, with a placeholder for each image."""
    return [
        {**message, "content": vision.parts_to_text(list(_parse_row_parts(message)))}
        if isinstance(message.get("content"), list)
        else dict(message)
        for message in messages
    ]


@dataclass(frozen=True, slots=True)
class TextAndImages:
    """A conversation with its images taken out."""

    conversation: Conversation
    images: Sequence[str] = ()
    """Data URLs; the text holds a placeholder for each."""


def separate_row_images(
    conversation: Conversation, vision: VisionProcessor | None
) -> TextAndImages:
    """Take the images out of the conversation of a row; raise for a model that takes none."""
    messages = conversation.messages
    if not row_has_parts(messages):
        return TextAndImages(conversation)
    if vision is None:
        if row_has_images(messages):
            raise ContentPartError(
                f"has images, and this model takes only text; use one of {SUPPORTED_FAMILIES}"
            )
        return TextAndImages(conversation)
    images = row_image_urls(messages)
    text = replace(conversation, messages=to_text_messages(messages, vision))
    return TextAndImages(text, images)


def expand_image_tokens(
    rendered: RenderedConversation, vision: VisionProcessor, urls: Sequence[str]
) -> RenderedConversation:
    """Repeat each image token as often as its image has tokens; image tokens have no loss.

    `urls` are the images of the whole conversation. If it has been truncated, only those whose
    placeholders are left are opened.
    """
    token = vision.image_token_id
    sizes = iter(map(vision.num_image_tokens, urls))
    counts = [next(sizes) if each == token else 1 for each in rendered.ids]
    indices = [index for index, count in enumerate(counts) for _ in range(count)]
    ids = tuple(rendered.ids[index] for index in indices)
    mask = tuple(0 if rendered.ids[index] == token else rendered.mask[index] for index in indices)
    starts = tuple(rendered.starts[index] for index in indices)
    return replace(rendered, ids=ids, mask=mask, starts=starts)


def check_row_placeholders(
    rendered: RenderedConversation, vision: VisionProcessor, urls: Sequence[str]
) -> None:
    """Raise if the text of a row contains more or fewer placeholders than images."""
    count = rendered.ids.count(vision.image_token_id)
    if count != len(urls):
        raise RequestRefused(
            f"It has {len(urls)} images, but {count} times {vision.placeholder} in its text; this "
            "model would take each of them for an image."
        )


def _parse_row_parts(message: Mapping[str, Any]) -> Iterator[Part]:
    """Parse the content parts of a message in a training row: text, and images by data URL."""
    content = message.get("content")
    for part in content if isinstance(content, list) else ():
        kind = part.get("type") if isinstance(part, Mapping) else None
        if kind == "text" and isinstance(part.get("text"), str):
            yield Text(text=part["text"])
        elif kind in IMAGE_PART_TYPES:
            value = next((part[key] for key in _URL_KEYS if part.get(key)), None)
            url = value.get("url") if isinstance(value, Mapping) else value
            if not isinstance(url, str):
                raise ContentPartError("has an image without a data URL")
            yield ImagePart(image_url=ImageUrl(url=url))
        else:
            raise ContentPartError(
                f"has content of type {kind!r}, which is neither text nor an image"
            )
