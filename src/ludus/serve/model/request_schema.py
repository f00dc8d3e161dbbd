"""The bodies of requests: fields of OpenAI's API, and some that vLLM has added.

Fields that are not known are ignored, as other servers do. Fields that are known and would change
the reply, but are not supported, are refused.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any, ClassVar, Self

from pydantic import Field, field_validator, model_validator

from ludus.data.tool_schema import JsonObject
from ludus.serve.model.api_errors import ApiError
from ludus.serve.model.message_schema import Conversation, MessageBody
from ludus.serve.model.request_body import Items, RequestBody

_MAX_STOP_SEQUENCES = 16
_MAX_PROMPTS = 4096
_MAX_REWARDS = 1000
_MAX_STOP_CHARS = 1024
"""Of each sequence: all are compared with the end of the text at every token."""


class StreamOptions(RequestBody):
    include_usage: bool = False


class SamplingBody(RequestBody):
    """What all requests that sample have in common."""

    neutral_values: ClassVar[dict[str, tuple[Any, ...]]] = {
        "frequency_penalty": (0,),
        "presence_penalty": (0,),
        "repetition_penalty": (1,),
        "min_p": (0,),
        "logit_bias": ({},),
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
    def _refuse_unsupported(cls, data: Any) -> Any:
        for name, neutral in cls.neutral_values.items() if isinstance(data, dict) else ():
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


class ChoicesBody(SamplingBody):
    """What chat and text completions have in common."""

    neutral_values: ClassVar[dict[str, tuple[Any, ...]]] = {
        **SamplingBody.neutral_values,
        "functions": ([],),
        "function_call": ("none", "auto"),
        "modalities": (["text"],),
        "echo": (False,),
        "suffix": ("",),
        "prompt_logprobs": (0,),
        "top_logprobs": (0,),
        "response_format": ({"type": "text"},),
    }
    prompt_field: ClassVar[str]
    """The field that the prompt is made of, for errors."""

    n: int = Field(default=1, ge=1)
    stream_options: StreamOptions = StreamOptions()
    max_tokens: int | None = Field(default=None, ge=1)
    max_completion_tokens: int | None = Field(default=None, ge=1)
    return_token_ids: bool = False
    """Of vLLM: send the ids of the prompt and of the completion."""
    return_tokens_as_token_ids: bool = False
    """Of vLLM: write `token_id:42` for a token beside its log-probability."""

    @property
    def token_limit(self) -> int | None:
        return self.max_completion_tokens or self.max_tokens

    @property
    def token_limit_field(self) -> str:
        return "max_completion_tokens" if self.max_completion_tokens else "max_tokens"


class ChatBody(ChoicesBody, Conversation):
    """A request to `/v1/chat/completions`."""

    prompt_field: ClassVar[str] = "messages"

    messages: Items[MessageBody] = Field(min_length=1)
    logprobs: bool = False


class CompletionBody(ChoicesBody):
    """A request to `/v1/completions`."""

    prompt_field: ClassVar[str] = "prompt"

    prompt: str | Items[str] | Items[int] | Items[Items[int]]
    logprobs: int | None = Field(default=None, ge=0, le=1)

    @field_validator("prompt", mode="before")
    @classmethod
    def _limit_prompts(cls, value: Any) -> Any:
        is_list = isinstance(value, list) and not isinstance(next(iter(value), 0), int)
        if is_list and len(value) > _MAX_PROMPTS:
            raise ValueError(f"at most {_MAX_PROMPTS} prompts are allowed, got {len(value):,}")
        return value

    @cached_property
    def prompts(self) -> list[str | list[int]]:
        if isinstance(self.prompt, str):
            return [self.prompt]
        ids = [part for part in self.prompt if isinstance(part, int)]
        return [ids] if ids else [part for part in self.prompt if not isinstance(part, int)]


class TokenizeBody(Conversation):
    """A request to `/tokenize`, as vLLM has it: messages, or a text."""

    prompt_fields: ClassVar[tuple[str, ...]] = (*Conversation.prompt_fields, "prompt")

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
    rewards: dict[str, float] = Field(default_factory=dict)
    """Named parts of the reward."""

    @field_validator("rewards", mode="before")
    @classmethod
    def _limit_rewards(cls, value: Any) -> Any:
        if isinstance(value, dict) and len(value) > _MAX_REWARDS:
            raise ValueError(f"a reward has at most {_MAX_REWARDS} parts, got {len(value):,}")
        return value
