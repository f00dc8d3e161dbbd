"""Chat messages as OpenAI's API has them: what a model is shown, and what it said.

This is also the form in which episodes are stored and chat templates are fed. What a provider's
API wants otherwise is its agent's business.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, SerializerFunctionWrapHandler, model_serializer

from ludus.data.content import Content, Image, Text
from ludus.data.tool_schema import ToolCall

Role = Literal["system", "user", "assistant", "tool"]


class ImageUrl(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    url: str


class ImagePart(BaseModel):
    """A picture, as a data URL or an address."""

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
    """A tool call as it stands in an assistant's message."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    id: str
    type: Literal["function"] = "function"
    function: Function


class Message(BaseModel):
    """One turn of one speaker. What is not set is not written."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    role: Role
    content: str | tuple[Part, ...] = ""
    reasoning_content: str | None = None
    """What the model thought before it spoke, apart from what it said."""
    tool_calls: tuple[Call, ...] | None = None
    tool_call_id: str | None = None
    name: str | None = None

    @model_serializer(mode="wrap")
    def _drop_none(self, write: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return {key: value for key, value in write(self).items() if value is not None}

    @property
    def text(self) -> str:
        """The words in it; a picture leaves a mark."""
        if isinstance(self.content, str):
            return self.content
        return "\n".join(
            part.text if isinstance(part, Text) else "[image]" for part in self.content
        )


def messages_before_reply(messages: Sequence[Message]) -> tuple[Message, ...]:
    """What stood there before the model spoke."""
    for at, message in enumerate(messages):
        if message.role == "assistant":
            return tuple(messages[:at])
    return tuple(messages)


def build_tool_call_message(*calls: ToolCall | None, position: int) -> Message:
    """The message of a player that only calls tools; `at` is its place, from which ids are made."""
    made = [call for call in calls if call is not None]
    return Message(
        role="assistant",
        tool_calls=tuple(
            Call(
                id=f"call_{position}_{number}",
                function=Function(
                    name=call.name, arguments=json.dumps(call.arguments, ensure_ascii=False)
                ),
            )
            for number, call in enumerate(made)
        )
        or None,
    )


def message_from_content(role: Role, content: Content, **more: Any) -> Message:
    """A message of what an environment showed."""
    return Message(role=role, content=_to_parts(content), **more)


def _to_parts(content: Content) -> str | tuple[Part, ...]:
    if isinstance(content, str):
        return content
    return tuple(_to_part(block) for block in content)


def _to_part(block: Text | Image) -> Text | ImagePart:
    if isinstance(block, Text):
        return block
    return ImagePart(image_url=ImageUrl(url=f"data:{block.mime_type};base64,{block.data}"))
