"""The bodies of requests: fields of OpenAI's API, and some that vLLM has added.

Fields that are not known are ignored, as other servers do. Fields that are known and would change
the reply, but are not supported, are refused.
"""

from __future__ import annotations

from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from ludus.data.content import Text
from ludus.data.messages import Call, Function, ImagePart, ImageUrl, Message, Part
from ludus.data.tool_schema import JsonObject

_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "frequency_penalty": (0,),
    "presence_penalty": (0,),
    "repetition_penalty": (1,),
    "min_p": (0,),
    "logit_bias": ({},),
    "response_format": ({"type": "text"},),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "modalities": (["text"],),
    "echo": (False,),
    "suffix": ("",),
    "prompt_logprobs": (0,),
}
"""Fields that are not supported, with the values at which they do nothing."""
_MAX_STOP_SEQUENCES = 16


class _Body(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)

    @model_validator(mode="before")
    @classmethod
    def _drop_nulls(cls, data: Any) -> Any:
        """Clients send null for fields that are not set."""
        if not isinstance(data, dict):
            return data
        return {name: value for name, value in data.items() if value is not None}


class StreamOptions(_Body):
    include_usage: bool = False


class SamplingBody(_Body):
    """What chat and text completions have in common."""

    model: str = ""
    n: int = Field(default=1, ge=1)
    temperature: float | None = Field(default=None, ge=0, le=100)
    top_p: float | None = Field(default=None, gt=0, le=1)
    top_k: int | None = None
    seed: int | None = None
    stop: str | list[str] = Field(default_factory=list)
    stream: bool = False
    stream_options: StreamOptions = StreamOptions()
    max_tokens: int | None = Field(default=None, ge=1)
    max_completion_tokens: int | None = Field(default=None, ge=1)
    return_token_ids: bool = False
    """Of vLLM: send the ids of the prompt and of the completion."""
    return_tokens_as_token_ids: bool = False
    """Of vLLM: write `token_id:42` for a token beside its log-probability."""

    @model_validator(mode="before")
    @classmethod
    def _refuse_unsupported(cls, data: Any) -> Any:
        for name, neutral in _NEUTRAL.items() if isinstance(data, dict) else ():
            value = data.get(name)
            if value is not None and value not in neutral:
                raise ValueError(f"{name} is not supported by this server, got {value!r:.100}.")
        return data

    @model_validator(mode="after")
    def _check_stop(self) -> Self:
        if len(self.stop_sequences) > _MAX_STOP_SEQUENCES or "" in self.stop_sequences:
            raise ValueError(f"stop takes up to {_MAX_STOP_SEQUENCES} sequences that are not empty")
        return self

    @property
    def stop_sequences(self) -> tuple[str, ...]:
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)

    @property
    def token_limit(self) -> int | None:
        return self.max_completion_tokens or self.max_tokens

    @property
    def sampling_options(self) -> JsonObject:
        """The sampling parameters that are set; a top_k of -1 or 0 means none."""
        options = {"temperature": self.temperature, "top_p": self.top_p}
        if self.top_k is not None and self.top_k > 0:
            options["top_k"] = self.top_k
        return {name: value for name, value in options.items() if value is not None}


class ImageUrlBody(_Body):
    url: str


class PartBody(_Body):
    """A part of a message's content, as chat completions or the Responses API write it."""

    type: Literal["text", "input_text", "output_text", "refusal", "image_url"]
    text: str = ""
    refusal: str = ""
    image_url: ImageUrlBody | None = None

    def to_part(self) -> Part:
        if self.type != "image_url":
            return Text(text=self.text or self.refusal)
        url = "" if self.image_url is None else self.image_url.url
        if not url.startswith("data:"):
            raise ValueError("an image must be a data URL (data:image/png;base64,...)")
        return ImagePart(image_url=ImageUrl(url=url))


class FunctionBody(_Body):
    name: str
    arguments: str = "{}"


class CallBody(_Body):
    id: str = ""
    function: FunctionBody


class MessageBody(_Body):
    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[PartBody] = ""
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: list[CallBody] = Field(default_factory=list)
    tool_call_id: str | None = None
    name: str | None = None

    def to_message(self) -> Message:
        content: str | tuple[Part, ...]
        if isinstance(self.content, str):
            content = self.content
        else:
            content = tuple(part.to_part() for part in self.content)
            if all(isinstance(part, Text) for part in content):
                content = "\n".join(part.text for part in content if isinstance(part, Text))
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


class ToolFunctionBody(_Body):
    model_config = ConfigDict(extra="allow", frozen=True)

    name: str


class ToolBody(_Body):
    type: Literal["function"] = "function"
    function: ToolFunctionBody


class Conversation(_Body):
    """Messages and tools, as chat completions and `/tokenize` take them."""

    messages: list[MessageBody] = Field(default_factory=list)
    tools: list[ToolBody] = Field(default_factory=list)
    tool_choice: Literal["none", "auto"] = "auto"
    chat_template_kwargs: JsonObject = Field(default_factory=dict)

    @property
    def offered_tools(self) -> list[JsonObject]:
        if self.tool_choice == "none":
            return []
        return [tool.model_dump() for tool in self.tools]

    def to_messages(self) -> tuple[Message, ...]:
        return tuple(message.to_message() for message in self.messages)


class ChatBody(SamplingBody, Conversation):
    """A request to `/v1/chat/completions`."""

    messages: list[MessageBody] = Field(min_length=1)
    logprobs: bool = False
    top_logprobs: int = Field(default=0, ge=0, le=0)
    """The engine knows the log-probabilities of sampled tokens alone."""


class CompletionBody(SamplingBody):
    """A request to `/v1/completions`."""

    prompt: str | list[str] | list[int] | list[list[int]]
    logprobs: int | None = Field(default=None, ge=0, le=1)

    @property
    def prompts(self) -> list[str | list[int]]:
        if isinstance(self.prompt, str):
            return [self.prompt]
        ids = [part for part in self.prompt if isinstance(part, int)]
        return [ids] if ids else [part for part in self.prompt if not isinstance(part, int)]


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


class RewardBody(_Body):
    """A request to `/sessions/ID/reward`."""

    reward: float | None = Field(default=None, allow_inf_nan=False)
    rewards: dict[str, float] = Field(default_factory=dict)
    """Named parts of the reward."""
