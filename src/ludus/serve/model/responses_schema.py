"""The body of a request to `/v1/responses`, and its translation to a chat request."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, ClassVar, Literal

from pydantic import Field, field_validator

from ludus.data.tool_schema import JsonObject
from ludus.serve.model.requests import (
    CallBody,
    ChatBody,
    FunctionBody,
    Items,
    MessageBody,
    PartBody,
    Parts,
    RequestBody,
    SamplingBody,
    ToolBody,
    ToolChoice,
    ToolFunctionBody,
)


class MessageItem(RequestBody):
    """A message; `type` may be missing."""

    type: Literal["message"] = "message"
    role: Literal["system", "developer", "user", "assistant"]
    content: Parts = Field(default_factory=list)


class FunctionCallItem(RequestBody):
    """A tool call of the model."""

    type: Literal["function_call"]
    call_id: str
    name: str
    arguments: str = "{}"


class FunctionCallOutputItem(RequestBody):
    """The result of a tool call."""

    type: Literal["function_call_output"]
    call_id: str
    output: Parts = Field(default_factory=list)


class ReasoningText(RequestBody):
    text: str = ""


class ReasoningItem(RequestBody):
    """The reasoning before a reply, or a summary of it."""

    type: Literal["reasoning"]
    summary: Items[ReasoningText] = Field(default_factory=list)
    content: Items[ReasoningText] = Field(default_factory=list)

    @property
    def text(self) -> str:
        return "\n".join(part.text for part in self.content or self.summary)


InputItem = Annotated[
    MessageItem | FunctionCallItem | FunctionCallOutputItem | ReasoningItem,
    Field(discriminator="type"),
]


class ResponsesTool(RequestBody):
    """A function, whose fields are not nested as in chat completions."""

    type: Literal["function"]
    name: str
    description: str | None = None
    parameters: JsonObject | None = None
    strict: bool | None = None

    def to_chat_tool(self) -> ToolBody:
        """Convert to a chat tool, without `strict`, which this server does not enforce."""
        fields = {"description": self.description, "parameters": self.parameters}
        return ToolBody(function=ToolFunctionBody.model_validate({"name": self.name, **fields}))


class TextFormat(RequestBody):
    type: Literal["text"] = "text"


class TextOptions(RequestBody):
    format: TextFormat = TextFormat()


class ResponsesBody(SamplingBody):
    """A request to `/v1/responses`."""

    neutral_values: ClassVar[dict[str, tuple[object, ...]]] = {
        **SamplingBody.neutral_values,
        "background": (False,),
        "prompt": (),
        "truncation": ("disabled",),
        # Responses are not stored: clients send the items of the whole conversation.
        "previous_response_id": (),
        "conversation": (),
    }

    input: Items[InputItem] = Field(min_length=1)
    instructions: str | None = None
    max_output_tokens: int | None = Field(default=None, ge=1)
    tools: Items[ResponsesTool] = Field(default_factory=list)
    tool_choice: ToolChoice = "auto"
    chat_template_kwargs: JsonObject = Field(default_factory=dict)
    text: TextOptions = TextOptions()

    @field_validator("input", mode="before")
    @classmethod
    def _add_types(cls, value: object) -> object:
        """Messages may come without a type, and one of the user as a text."""
        if isinstance(value, str):
            value = [{"role": "user", "content": value}]
        if not isinstance(value, list):
            return value
        return [
            {**item, "type": item.get("type") or "message"} if isinstance(item, dict) else item
            for item in value
        ]

    def to_chat_body(self) -> ChatBody:
        """The chat request that gets the same reply."""
        # Messages in which the reasoning, the text and the calls of one reply are together.
        groups: list[list[InputItem]] = []
        for item in self.input:
            last = groups[-1][-1] if groups else item
            # Two messages in a row are two replies.
            both_messages = isinstance(last, MessageItem) and isinstance(item, MessageItem)
            if groups and not both_messages and _is_reply_part(last) and _is_reply_part(item):
                groups[-1].append(item)
            else:
                groups.append([item])
        messages = [_to_chat_message(group) for group in groups]
        if self.instructions:
            system = [PartBody(type="text", text=self.instructions)]
            first = self.input[0]
            if isinstance(first, MessageItem) and first.role in ("system", "developer"):
                # Chat templates may take only one system message.
                system += first.content
                messages = messages[1:]
            messages = [MessageBody(role="system", content=system), *messages]
        sampling = {name: getattr(self, name) for name in SamplingBody.model_fields}
        return ChatBody(
            **sampling,
            messages=messages,
            tools=[tool.to_chat_tool() for tool in self.tools],
            tool_choice=self.tool_choice,
            max_completion_tokens=self.max_output_tokens,
            chat_template_kwargs=self.chat_template_kwargs,
        )


def _is_reply_part(item: InputItem) -> bool:
    is_message = isinstance(item, MessageItem) and item.role == "assistant"
    return is_message or isinstance(item, FunctionCallItem | ReasoningItem)


def _to_chat_message(group: Sequence[InputItem]) -> MessageBody:
    first = group[0]
    if isinstance(first, FunctionCallOutputItem):
        return MessageBody(role="tool", content=first.output, tool_call_id=first.call_id)
    if isinstance(first, MessageItem) and first.role != "assistant":
        return MessageBody(role=first.role, content=first.content)
    return MessageBody(
        role="assistant",
        content=[part for item in group if isinstance(item, MessageItem) for part in item.content],
        reasoning_content="\n".join(
            item.text for item in group if isinstance(item, ReasoningItem) and item.text
        ),
        tool_calls=[
            CallBody(
                id=item.call_id, function=FunctionBody(name=item.name, arguments=item.arguments)
            )
            for item in group
            if isinstance(item, FunctionCallItem)
        ],
    )
