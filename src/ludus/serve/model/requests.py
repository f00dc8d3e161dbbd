"""Request bodies: fields of OpenAI's API and some of vLLM's, and how they are read.

Unknown fields are ignored, as other servers do. Fields that are known and would change the reply,
but are not supported, are refused.
"""

from __future__ import annotations

import asyncio
import re
from typing import Annotated, ClassVar, Literal, Self, TypeVar

from fastapi import Request
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    field_validator,
    model_validator,
)

from ludus.data.messages import Call, Function, ImagePart, ImageUrl, Message, Part, Text
from ludus.data.tool_schema import JsonObject
from ludus.policy.runtime import MAX_CHARS_ON_LOOP
from ludus.serve.model.api_errors import ApiError, context_error, from_validation_error

_MAX_BYTES_PER_TOKEN = 32
"""Far more than the tokens of any text have on average."""
_UNKNOWN_CONTEXT = 131_072
"""The most tokens of a prompt for a model that does not name its context."""
_IMAGE = re.compile(rb'"data:image/[^"]*"')
_MAX_STOP_SEQUENCES = 16
_MAX_STOP_CHARS = 1024
"""Limit per stop sequence: all are compared with the end of the text at every token."""
_MAX_REWARDS = 1000

Body = TypeVar("Body", bound="RequestBody")
Item = TypeVar("Item")
Items = Annotated[list[Item], Field(fail_fast=True)]
"""A list whose first error is reported: a million of them would take gigabytes."""


class RequestBody(BaseModel):
    """A part of a request."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    @model_validator(mode="before")
    @classmethod
    def _drop_nulls(cls, data: object) -> object:
        """Clients send null for fields that are not set."""
        if not isinstance(data, dict):
            return data
        return {name: value for name, value in data.items() if value is not None}


async def parse_body(request: Request, kind: type[Body]) -> Body:
    content = await request.body()
    if len(content) <= MAX_CHARS_ON_LOOP:
        return _parse(content, kind)
    return await asyncio.to_thread(_parse, content, kind)


async def parse_prompt(request: Request, kind: type[Body], context: int | None) -> Body:
    """Parse a request body; reject far too long prompts, which could take minutes to render."""
    content, context = await request.body(), context or _UNKNOWN_CONTEXT
    if len(content) > context:
        text = _IMAGE.sub(b"", content)
        # Each object (a message, a part, a tool) is at least one token.
        if len(text) > context * _MAX_BYTES_PER_TOKEN or text.count(b"{") > context:
            raise context_error(context, f"{len(text):,} characters")
    return await parse_body(request, kind)


def _parse(content: bytes, kind: type[Body]) -> Body:
    try:
        return kind.model_validate_json(content)
    except ValidationError as error:
        raise from_validation_error(error) from None


def check_model(name: str, names: tuple[str, ...]) -> None:
    """Raise for a name that is none of these. Requests without a name mean the served model."""
    if name and name not in names:
        raise ApiError(
            f"The model {name[:100]!r} does not exist; this server has {names[0]!r}.",
            status=404,
            param="model",
            code="model_not_found",
        )


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


Parts = Annotated[
    Items[PartBody],
    BeforeValidator(lambda v: [{"type": "text", "text": v}] if isinstance(v, str) else v),
]
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
        calls = tuple(
            Call(
                id=call.id,
                function=Function(name=call.function.name, arguments=call.function.arguments),
            )
            for call in self.tool_calls
        )
        return Message(
            role="system" if self.role == "developer" else self.role,
            content="\n".join(texts) if len(texts) == len(parts) else parts,
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


class SamplingBody(RequestBody):
    """What all requests that sample have in common."""

    neutral_values: ClassVar[dict[str, tuple[object, ...]]] = {
        "frequency_penalty": (0,),
        "presence_penalty": (0,),
        "repetition_penalty": (1,),
        "min_p": (0,),
        "logit_bias": ({},),
        "top_logprobs": (0,),
        "response_format": ({"type": "text"},),
    }
    """Fields that are not supported, with the values at which they do nothing."""

    model: str = ""
    temperature: float | None = Field(default=None, ge=0, le=100)
    top_p: float | None = Field(default=None, gt=0, le=1)
    top_k: int | None = Field(default=None, ge=-1, le=2**31 - 1)
    seed: int | None = None
    stop: str | Items[str] = Field(default_factory=list)
    stream: bool = False

    @model_validator(mode="before")
    @classmethod
    def _refuse_unsupported(cls, data: object) -> object:
        if isinstance(data, dict):
            for name, neutral in cls.neutral_values.items():
                value = data.get(name)
                if value is not None and value not in neutral:
                    # Not a ValueError, because pydantic would not know the field.
                    raise ApiError(
                        f"{name} is not supported by this server, got {value!r:.100}.", param=name
                    )
        return data

    @model_validator(mode="after")
    def _check_stop(self) -> Self:
        if len(self.stop_sequences) > _MAX_STOP_SEQUENCES or "" in self.stop_sequences:
            raise ValueError(f"stop takes up to {_MAX_STOP_SEQUENCES} sequences that are not empty")
        longest = max(map(len, self.stop_sequences), default=0)
        if longest > _MAX_STOP_CHARS:
            raise ValueError(
                f"a stop sequence may have {_MAX_STOP_CHARS} characters, got {longest:,}"
            )
        return self

    @property
    def stop_sequences(self) -> tuple[str, ...]:
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)

    @property
    def sampling_options(self) -> JsonObject:
        """The sampling parameters that are set; a top_k of -1 or 0 means none."""
        options = {"temperature": self.temperature, "top_p": self.top_p}
        if self.top_k is not None and self.top_k > 0:
            options["top_k"] = self.top_k
        return {name: value for name, value in options.items() if value is not None}


class StreamOptions(RequestBody):
    include_usage: bool = False


class ChatBody(SamplingBody, Conversation):
    """A request to `/v1/chat/completions`."""

    neutral_values: ClassVar[dict[str, tuple[object, ...]]] = {
        **SamplingBody.neutral_values,
        "functions": ([],),
        "function_call": ("none", "auto"),
        "modalities": (["text"],),
        "prompt_logprobs": (0,),
    }

    messages: Items[MessageBody] = Field(min_length=1)
    n: int = Field(default=1, ge=1)
    stream_options: StreamOptions = StreamOptions()
    max_tokens: int | None = Field(default=None, ge=1)
    max_completion_tokens: int | None = Field(default=None, ge=1)
    logprobs: bool = False
    return_token_ids: bool = False
    """vLLM's option: send the ids of the prompt and of the completion."""
    return_tokens_as_token_ids: bool = False
    """vLLM's option: write `token_id:42` for a token beside its log-probability."""


class TokenizeBody(Conversation):
    """A request to `/tokenize`, as vLLM has it: messages, or a text."""

    model: str = ""
    prompt: str | None = None
    add_special_tokens: bool = True

    @model_validator(mode="after")
    def _require_one(self) -> Self:
        if bool(self.messages) == (self.prompt is not None):
            raise ValueError("either messages or prompt must be given")
        return self


class RewardBody(RequestBody):
    """A request to `/sessions/ID/reward`."""

    reward: float | None = Field(default=None, allow_inf_nan=False)
    rewards: dict[str, Annotated[float, Field(allow_inf_nan=False)]] = Field(default_factory=dict)
    """Named parts of the reward."""

    @field_validator("rewards", mode="before")
    @classmethod
    def _limit_rewards(cls, value: object) -> object:
        if isinstance(value, dict) and len(value) > _MAX_REWARDS:
            raise ValueError(f"a reward has at most {_MAX_REWARDS} parts, got {len(value):,}")
        return value
