"""Chat messages in the format of OpenAI's API, and the content of observations.

Episodes are stored in this format, and chat templates take it. Agents convert it to the format of
other providers. The blocks of an observation have MCP's format, in which they are sent.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from itertools import takewhile
from typing import Annotated, Literal

from pydantic import (
    AliasChoices,
    Field,
    SerializerFunctionWrapHandler,
    TypeAdapter,
    ValidationError,
    model_serializer,
)

from ludus.data.tool_schema import FrozenModel, JsonObject


class Text(FrozenModel):
    """A piece of text."""

    type: Literal["text"] = "text"
    text: str


class Image(FrozenModel):
    """A base64-encoded image."""

    type: Literal["image"] = "image"
    data: str
    mime_type: str = Field(
        default="image/png",
        validation_alias=AliasChoices("mime_type", "mimeType"),
        serialization_alias="mimeType",
    )

    @classmethod
    def from_bytes(cls, data: bytes, mime_type: str = "image/png") -> Image:
        return cls(data=base64.b64encode(data).decode("ascii"), mime_type=mime_type)


Block = Annotated[Text | Image, Field(discriminator="type")]
Content = str | Sequence[Text | Image]
_blocks: TypeAdapter[list[Text | Image]] = TypeAdapter(list[Block])


def content_text(content: Content) -> str:
    """The text of a message's content; an image is replaced by its media type in brackets."""
    if isinstance(content, str):
        return content
    return "\n".join(
        block.text if isinstance(block, Text) else f"[{block.mime_type}]" for block in content
    )


def is_content_blocks(value: object) -> bool:
    """Whether a value is a list of text and image blocks, with at least one."""
    return (
        isinstance(value, Sequence)
        and not isinstance(value, str)
        and bool(value)
        and all(isinstance(block, Text | Image) for block in value)
    )


def parse_blocks(content: object) -> list[Text | Image]:
    """Parse content that is a list of text and image blocks; empty if it is something else."""
    try:
        return _blocks.validate_python(content)
    except ValidationError:
        return []


Role = Literal["system", "user", "assistant", "tool"]


class ImageUrl(FrozenModel):
    url: str


class ImagePart(FrozenModel):
    """An image, as a data URL or another URL."""

    type: Literal["image_url"] = "image_url"
    image_url: ImageUrl


Part = Annotated[Text | ImagePart, Field(discriminator="type")]


class Function(FrozenModel):
    name: str
    arguments: str
    """JSON, as the model wrote it; it may be malformed."""


class Call(FrozenModel):
    """A tool call in an assistant's message."""

    id: str
    type: Literal["function"] = "function"
    function: Function


class Message(FrozenModel):
    """One message of a conversation. Fields that are None are not serialized."""

    role: Role
    content: str | tuple[Part, ...] = ""
    reasoning_content: str | None = None
    """The model's reasoning before its reply."""
    tool_calls: tuple[Call, ...] | None = None
    tool_call_id: str | None = None
    name: str | None = None

    @model_serializer(mode="wrap")
    def _drop_none(self, write: SerializerFunctionWrapHandler) -> JsonObject:
        return {key: value for key, value in write(self).items() if value is not None}

    @property
    def text(self) -> str:
        """The text of the message; an image is replaced by `[image]`."""
        if isinstance(self.content, str):
            return self.content
        return "\n".join(
            part.text if isinstance(part, Text) else "[image]" for part in self.content
        )


def messages_before_reply(messages: Sequence[Message]) -> tuple[Message, ...]:
    """The messages before the first one of the assistant."""
    return tuple(takewhile(lambda message: message.role != "assistant", messages))


def message_from_content(
    role: Role, content: Content, *, tool_call_id: str | None = None
) -> Message:
    """A message with the content of an observation."""
    if isinstance(content, str):
        return Message(role=role, content=content, tool_call_id=tool_call_id)
    parts = tuple(
        block
        if isinstance(block, Text)
        else ImagePart(image_url=ImageUrl(url=f"data:{block.mime_type};base64,{block.data}"))
        for block in content
    )
    return Message(role=role, content=parts, tool_call_id=tool_call_id)


def message_text(message: Mapping[str, object], *, image_text: str | None = None) -> str:
    """The text of a message in JSON; images are left out, or replaced by `image_text`."""
    content = message.get("content")
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else []
    texts = (part.get("text", image_text) for part in parts if isinstance(part, dict))
    return "\n".join(text for text in texts if isinstance(text, str))


def prompt_text(messages: str | Sequence[JsonObject], *, image_text: str | None = None) -> str:
    """The text of the messages (JSON) before the first reply, without the system prompt.

    A string is a prompt without roles. Raises `KeyError` for a message without a role.
    """
    if isinstance(messages, str):
        return messages
    prompt = takewhile(lambda message: message["role"] != "assistant", messages)
    return "\n".join(
        message_text(message, image_text=image_text)
        for message in prompt
        if message["role"] != "system"
    )


def without_call_ids(messages: Sequence[JsonObject]) -> list[JsonObject]:
    """Messages in JSON without the ids of calls, so that equal content compares equal."""
    return [
        {
            **{name: value for name, value in message.items() if name != "tool_call_id"},
            "tool_calls": [call["function"] for call in message.get("tool_calls") or ()],
        }
        for message in messages
    ]
