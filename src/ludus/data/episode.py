"""An episode: one attempt at one task, and one line of `episodes.jsonl`."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from datetime import datetime
from enum import StrEnum
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field
from pydantic_core import to_json

from ludus.data.messages import Message
from ludus.data.tool_schema import JsonObject


class StopReason(StrEnum):
    """Why an episode ended."""

    DONE = "done"
    """The environment ended it."""
    NO_TOOL_CALL = "no_tool_call"
    """The model answered in words where only a tool could act."""
    MAX_TURNS = "max_turns"
    """The model had all the turns that it may have."""
    MAX_TOKENS = "max_tokens"
    """A reply was cut off, or the episode's tokens or the model's context were used up."""
    REFUSED = "refused"
    """The model or its provider declined to answer."""
    DEADLINE = "deadline"
    """It took too long. Unscored: time is not the model's doing."""
    BROKEN = "broken"
    """Something other than the model failed. Unscored."""

    @property
    def is_fault(self) -> bool:
        """Whether the infrastructure ended it, and not the model or the environment's rules."""
        return self in (StopReason.DEADLINE, StopReason.BROKEN)


_WITHOUT_CALL = (StopReason.NO_TOOL_CALL, StopReason.REFUSED)
"""Ends of an episode whose last reply is complete and calls no tool."""


class Fault(BaseModel):
    """What broke an attempt."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    kind: str
    """The name of the error's class."""
    where: Literal["model", "environment"]
    message: str

    @property
    def text(self) -> str:
        """Kind and message; the message alone where it names the author's exception itself."""
        named = self.kind in ("ExecutionFailed", "FactoryFailed")
        return self.message if named else f"{self.kind}: {self.message}"


class Usage(BaseModel):
    """What the model's provider counted."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    """The part of the prompt that was read from the provider's cache."""
    reasoning_tokens: int = 0
    """The part of the completion that was thought and not said."""
    cost: float | None = None
    """US dollars; None where no price is known."""

    @property
    def total_tokens(self) -> int:
        return self.prompt_tokens + self.completion_tokens

    def __add__(self, other: Usage) -> Usage:
        known = [usage.cost for usage in (self, other) if usage.cost is not None]
        return Usage(
            prompt_tokens=self.prompt_tokens + other.prompt_tokens,
            completion_tokens=self.completion_tokens + other.completion_tokens,
            cached_tokens=self.cached_tokens + other.cached_tokens,
            reasoning_tokens=self.reasoning_tokens + other.reasoning_tokens,
            cost=sum(known) if known else None,
        )


class Timing(BaseModel):
    """When it was played, and where the time went."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    started_at: datetime
    ended_at: datetime
    model_s: float = 0.0
    environment_s: float = 0.0


class Tokens(BaseModel):
    """What a local policy sampled, token by token."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    ids: tuple[int, ...]
    logprobs: tuple[float | None, ...]
    mask: tuple[Literal[0, 1], ...]
    """1 where the policy sampled the token, 0 where it was given."""


class Episode(BaseModel):
    """One attempt at one task.

    What a resumed run needs of a line comes first in it, so that a million lines are read back
    without being parsed.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    version: Literal[1] = 1
    episode_id: str
    """Stable: the same plan gives the same ids."""
    attempt: int = 1
    stop_reason: StopReason
    reward: float | None = None
    """The sum of the rewards that were given; None: unscored."""
    usage: Usage = Usage()
    environment: str
    """The spec that was played."""
    task: JsonObject = Field(default_factory=dict)
    """The arguments of reset."""
    seed: int | None = None
    group_id: str
    """The same for all attempts at the same task, in every run."""
    agent: JsonObject = Field(default_factory=dict)
    """Provider, model, sampling settings; never a secret."""
    messages: tuple[Message, ...] = ()
    tools: tuple[JsonObject, ...] = ()
    """What was offered, in OpenAI's form."""
    rewards: dict[str, float] = Field(default_factory=dict)
    """The named parts of the reward."""
    done: bool = False
    """Whether the environment ended it."""
    turns: int = 0
    """How often the model spoke."""
    tool_calls: int = 0
    """Complete calls: one that the token limit cut in two is not counted."""
    malformed_calls: int = 0
    """Complete calls that no tool could take: not JSON, an unknown tool, arguments that do not
    fit."""
    error: Fault | None = None
    timing: Timing | None = None
    tokens: Tokens | None = None

    @property
    def broken(self) -> bool:
        """Whether the infrastructure ended it; then it is nobody's score."""
        return self.stop_reason.is_fault

    @property
    def cut_off(self) -> bool:
        """Whether a token limit, or the end of the model's context, ended it."""
        return self.stop_reason is StopReason.MAX_TOKENS

    @property
    def format_compliant(self) -> bool | None:
        """Whether every complete reply was a call that the environment could take.

        None where there was no complete reply, because a token limit cut off all of them.
        """
        if self.malformed_calls or self.stop_reason in _WITHOUT_CALL:
            return False
        return True if self.tool_calls else None

    def to_line(self) -> bytes:
        try:
            return self.__pydantic_serializer__.to_json(self) + b"\n"
        except ValueError as error:
            if isinstance(error.__cause__, KeyboardInterrupt | SystemExit):
                raise error.__cause__ from None  # A signal came in between, and pydantic wraps it.
            # Half a character: models can write \\ud800, and no file can hold what that decodes to.
            whole = self.__pydantic_serializer__.to_python(self, mode="json")
            return to_json(_replace_surrogates(whole)) + b"\n"

    @classmethod
    def from_line(cls, line: bytes | str) -> Episode:
        return cls.model_validate_json(line)


def task_group_id(environment: str, task: Mapping[str, Any]) -> str:
    """A name for the task itself: the same in every run, whoever plays it."""
    words = json.dumps([environment, task], sort_keys=True, ensure_ascii=False, default=str)
    return f"{digest_64(words):016x}"


def digest_64(text: str) -> int:
    """Eight bytes of a hash that is the same everywhere, unlike Python's own."""
    data = text.encode("utf-8", "surrogatepass")
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "big")


def _replace_surrogates(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, dict):
        return {_replace_surrogates(key): _replace_surrogates(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_replace_surrogates(item) for item in value]
    return value
