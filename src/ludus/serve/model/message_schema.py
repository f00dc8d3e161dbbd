"""Messages and tools in requests, and their conversion to those of episodes."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, ConfigDict, Field

from ludus.data.messages import Call, Function, ImagePart, ImageUrl, Message, Part, Text
from ludus.data.tool_schema import JsonObject
from ludus.serve.model.request_body import Items, RequestBody


class ImageUrlBody(RequestBody):
    url: str


class PartBody(RequestBody):
    """A part of a message's content, as chat completions or the Responses API write it."""

    type: Literal["text", "input_text", "output_text", "refusal", "image_url", "input_image"]
    text: str = ""
    refusal: str = ""
    image_url: str | ImageUrlBody = ""

    def to_part(self) -> Part:
        if self.type not in ("image_url", "input_image"):
            return Text(text=self.text or self.refusal)
        url = self.image_url if isinstance(self.image_url, str) else self.image_url.url
        if not url.startswith("data:"):
            raise ValueError("an image must be a data URL (data:image/png;base64,...)")
        return ImagePart(image_url=ImageUrl(url=url))


def _text_to_parts(content: Any) -> Any:
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


Parts = Annotated[Items[PartBody], BeforeValidator(_text_to_parts)]
"""The content of a message, which may also be written as a text."""


class FunctionBody(RequestBody):
    name: str
    arguments: str = "{}"


class CallBody(RequestBody):
    id: str = ""
    function: FunctionBody


class MessageBody(RequestBody):
    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Parts = Field(default_factory=list)
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: Items[CallBody] = Field(default_factory=list)
    tool_call_id: str | None = None
    name: str | None = None

    def to_message(self) -> Message:
        parts = tuple(part.to_part() for part in self.content)
        texts = [part.text for part in parts if isinstance(part, Text)]
        content = "\n".join(texts) if len(texts) == len(parts) else parts
        calls = tuple(
            Call(
                id=call.id,
                function=Function(name=call.function.name, arguments=call.function.arguments),
            )
            for call in self.tool_calls
        )
        return Message(
            role="system" if self.role == "developer" else self.role,
            content=content,
            reasoning_content=self.reasoning_content or self.reasoning,
            tool_calls=calls or None,
            tool_call_id=self.tool_call_id,
            name=self.name,
        )


class ToolFunctionBody(RequestBody):
    model_config = ConfigDict(extra="allow", frozen=True)

    name: str


class ToolBody(RequestBody):
    type: Literal["function"] = "function"
    function: ToolFunctionBody


ToolChoice = Literal["auto", "none"]


class Conversation(RequestBody):
    """Messages and tools, as chat completions and `/tokenize` take them."""

    prompt_fields: ClassVar[tuple[str, ...]] = ("messages", "tools", "chat_template_kwargs")

    messages: Items[MessageBody] = Field(default_factory=list)
    tools: Items[ToolBody] = Field(default_factory=list)
    tool_choice: ToolChoice = "auto"
    chat_template_kwargs: JsonObject = Field(default_factory=dict)

    @property
    def offered_tools(self) -> list[JsonObject]:
        if self.tool_choice == "none":
            return []
        return [tool.model_dump() for tool in self.tools]

    def to_messages(self) -> tuple[Message, ...]:
        return tuple(message.to_message() for message in self.messages)
