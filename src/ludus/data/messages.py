"""Chat messages in the format of OpenAI's API.

Episodes are stored in this format, and chat templates take it. Agents convert it to the format of
other providers.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, SerializerFunctionWrapHandler, model_serializer

from ludus.data.content import Content, Text

Role = Literal["system", "user", "assistant", "tool"]


class ImageUrl(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    url: str


class ImagePart(BaseModel):
    """An image, as a data URL or another URL."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    type: Literal["image_url"] = "image_url"
    image_url: ImageUrl


Part = Annotated[Text | ImagePart, Field(discriminator="type")]


class Function(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    arguments: str
    """JSON, as the model wrote it; it may be malformed."""


class Call(BaseModel):
    """A tool call in an assistant's message."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    id: str
    type: Literal["function"] = "function"
    function: Function


class Message(BaseModel):
    """One message of a conversation. Fields that are None are not serialized."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    role: Role
    content: str | tuple[Part, ...] = ""
    reasoning_content: str | None = None
    """The model's reasoning before its reply."""
    tool_calls: tuple[Call, ...] | None = None
    tool_call_id: str | None = None
    name: str | None = None

    @model_serializer(mode="wrap")
    def _drop_none(self, write: SerializerFunctionWrapHandler) -> dict[str, Any]:
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


def message_from_content(role: Role, content: Content, **fields: Any) -> Message:
    """A message with the content of an observation; `fields` are further fields of the message."""
    if isinstance(content, str):
        return Message(role=role, content=content, **fields)
    parts = tuple(
        block
        if isinstance(block, Text)
        else ImagePart(image_url=ImageUrl(url=f"data:{block.mime_type};base64,{block.data}"))
        for block in content
    )
    return Message(role=role, content=parts, **fields)
