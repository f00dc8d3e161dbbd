"""Images in training rows: how a row looks to a model that sees.

Rows are JSON, as `ludus curate` writes them: the content of a message is a string or a list of
parts, and an image is a part that holds a data URL. The text that is made of a row is the one that
a policy is shown when it plays: a mark for each image, which among the ids is as long as the image.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ludus.data.content import Text
from ludus.data.messages import ImagePart, ImageUrl, Part
from ludus.data.tool_schema import JsonObject
from ludus.errors import RequestRefused
from ludus.policy.chat.rendering import RenderedConversation
from ludus.policy.vision.processor import VisionProcessor

IMAGE_PART_TYPES = ("image_url", "image", "input_image")
"""What parts are called that hold an image."""
_URL_KEYS = ("image_url", "image", "url")
"""Keys under which an image part may hold its address."""


class ContentPartError(ValueError):
    """A part of a message's content that is neither text nor an image with its data."""


def has_content_parts(messages: Iterable[Mapping[str, Any]]) -> bool:
    """Whether there is a message whose content is more than a string."""
    return any(isinstance(message.get("content"), list) for message in messages)


def has_images(messages: Iterable[Mapping[str, Any]]) -> bool:
    contents = (message.get("content") for message in messages)
    parts = (part for content in contents if isinstance(content, list) for part in content)
    return any(isinstance(part, Mapping) and part.get("type") in IMAGE_PART_TYPES for part in parts)


def image_urls(messages: Iterable[Mapping[str, Any]]) -> list[str]:
    """The addresses of all images, in the order in which they are seen."""
    parts = (part for message in messages for part in _parse_parts(message))
    return [part.image_url.url for part in parts if isinstance(part, ImagePart)]


def to_text_messages(
    messages: Iterable[Mapping[str, Any]], vision: VisionProcessor
) -> list[JsonObject]:
    """The messages with words alone, and a mark in the place of each image."""
    return [
        {**message, "content": vision.parts_to_text(list(_parse_parts(message)))}
        if isinstance(message.get("content"), list)
        else dict(message)
        for message in messages
    ]


def expand_image_tokens(
    rendered: RenderedConversation, vision: VisionProcessor, urls: Sequence[str]
) -> RenderedConversation:
    """The conversation with one token for each part of its images; none of them bears the loss.

    `urls` are the images of the whole conversation. Of one that is cut, only those are looked at
    whose marks are left.
    """
    sizes = iter(map(vision.num_image_tokens, urls))
    widths = [next(sizes) if token == vision.image_token_id else 1 for token in rendered.ids]
    places = [at for at, width in enumerate(widths) for _ in range(width)]
    ids = tuple(rendered.ids[at] for at in places)
    mask = tuple(
        0 if rendered.ids[at] == vision.image_token_id else rendered.mask[at] for at in places
    )
    return replace(rendered, ids=ids, mask=mask, starts=tuple(rendered.starts[at] for at in places))


def check_placeholders(
    rendered: RenderedConversation, vision: VisionProcessor, urls: Sequence[str]
) -> None:
    """Raise where the text has other marks than those of its images."""
    if rendered.ids.count(vision.image_token_id) != len(urls):
        raise RequestRefused(
            f"It has {len(urls)} images, and {vision.placeholder} stands in its text "
            f"{rendered.ids.count(vision.image_token_id)} times; this model would take each of them for an image."
        )


def _parse_parts(message: Mapping[str, Any]) -> Iterator[Part]:
    content = message.get("content")
    return map(_parse_part, content if isinstance(content, list) else ())


def _parse_part(part: Any) -> Part:
    kind = part.get("type") if isinstance(part, Mapping) else None
    if kind == "text" and isinstance(part.get("text"), str):
        return Text(text=part["text"])
    if kind in IMAGE_PART_TYPES:
        found = next((part[key] for key in _URL_KEYS if part.get(key)), None)
        url = found.get("url") if isinstance(found, Mapping) else found
        if isinstance(url, str):
            return ImagePart(image_url=ImageUrl(url=url))
        raise ContentPartError("has an image without a data URL")
    raise ContentPartError(f"has content of type {kind!r}, which is neither text nor an image")
