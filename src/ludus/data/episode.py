"""An episode: one attempt at one task, and one line of `episodes.jsonl`."""

from __future__ import annotations

import json
from codecs import BOM_UTF8
from collections.abc import Mapping
from datetime import datetime
from enum import StrEnum
from typing import Literal

from pydantic import Field, field_validator
from pydantic_core import to_json

from ludus.data.files import stable_hash
from ludus.data.messages import Message
from ludus.data.tool_schema import FrozenModel, JsonObject


class StopReason(StrEnum):
    """Why an episode ended."""

    DONE = "done"
    """The environment ended it."""
    NO_TOOL_CALL = "no_tool_call"
    """The model replied without a tool call."""
    MAX_TURNS = "max_turns"
    """The limit of turns was reached."""
    MAX_TOKENS = "max_tokens"
    """A reply was truncated, or the token budget of the episode or the context was used up."""
    REFUSED = "refused"
    """The model or its provider declined to answer."""
    DEADLINE = "deadline"
    """The time limit was reached. Unscored."""
    BROKEN = "broken"
    """The infrastructure failed. Unscored."""

    @property
    def is_fault(self) -> bool:
        """Whether the infrastructure ended the episode, not the model or the environment."""
        return self in (StopReason.DEADLINE, StopReason.BROKEN)


_WITHOUT_CALL = (StopReason.NO_TOOL_CALL, StopReason.REFUSED)
"""Stop reasons of episodes whose last reply is complete and has no tool call."""

SOLVED_PART = "solved"
"""The part of a reward that says whether an attempt succeeded, if an environment reports it."""

OMITTED_IF_EMPTY = ("turn_rewards", "progress", "explored_turns", "tutor_replies")
"""Fields of an episode that are left out of its line if they are empty."""


class EpisodeFault(FrozenModel):
    """The error that broke an attempt."""

    kind: str
    """The name of the error's class."""
    where: Literal["model", "environment"]
    message: str

    @property
    def text(self) -> str:
        """The episode's fault as text: kind and message; the message alone if it has a kind."""
        has_name = self.kind in ("ExecutionFailed", "FactoryFailed")
        return self.message if has_name else f"{self.kind}: {self.message}"


class Usage(FrozenModel):
    """Tokens and cost, as counted by the model's provider."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    """Prompt tokens that were read from the provider's cache."""
    reasoning_tokens: int = 0
    """Completion tokens that belong to the reasoning."""
    cost: float | None = None
    """US dollars; None if no price is known."""

    @property
    def total_tokens(self) -> int:
        return self.prompt_tokens + self.completion_tokens

    def __add__(self, other: Usage) -> Usage:
        costs = [usage.cost for usage in (self, other) if usage.cost is not None]
        return Usage(
            prompt_tokens=self.prompt_tokens + other.prompt_tokens,
            completion_tokens=self.completion_tokens + other.completion_tokens,
            cached_tokens=self.cached_tokens + other.cached_tokens,
            reasoning_tokens=self.reasoning_tokens + other.reasoning_tokens,
            cost=sum(costs) if costs else None,
        )


class Timing(FrozenModel):
    """Start and end of an episode, and the seconds spent in the model and the environment."""

    started_at: datetime
    ended_at: datetime
    model_s: float = 0.0
    environment_s: float = 0.0


class Tokens(FrozenModel):
    """The tokens of a local policy's episode."""

    ids: tuple[int, ...]
    logprobs: tuple[float | None, ...]
    mask: tuple[Literal[0, 1], ...]
    """1 if the policy sampled the token, 0 if it is part of the prompt."""


class Episode(FrozenModel):
    """One attempt at one task.

    The fields that a resumed run needs come first, so that a regular expression can read them from
    a line without parsing all of it.
    """

    version: Literal[1] = 1
    episode_id: str
    """Deterministic: the same plan gives the same ids."""
    attempt: int = 1
    stop_reason: StopReason
    reward: float | None = None
    """The sum of the rewards; None if the episode is unscored."""
    usage: Usage = Usage()
    environment: str
    """The name of the environment."""
    task: JsonObject = Field(default_factory=dict)
    """The arguments of `reset`."""
    seed: int | None = None
    group_id: str
    """The same for all episodes with the same task, in every run."""
    agent: JsonObject = Field(default_factory=dict)
    """Provider, model and sampling parameters; no secrets."""
    messages: tuple[Message, ...] = ()
    tools: tuple[JsonObject, ...] = ()
    """The tools that were offered, in OpenAI's format."""
    rewards: dict[str, float] = Field(default_factory=dict)
    """The named parts of the reward."""
    turn_rewards: tuple[float, ...] = ()
    """The environment's reward for each reply; a reward of the reset counts to the first. Their sum
    is `reward`, unless reward functions have changed it. Empty if they are not known."""
    progress: tuple[float, ...] = ()
    """The environment's `progress()` after the reset and after each reply, if it has one."""
    explored_turns: tuple[int, ...] = ()
    """The turns, from 0, whose action was random instead of the agent's."""
    tutor_replies: tuple[Message | None, ...] = ()
    """What the tutor would have replied, turn by turn; None if it had no reply."""
    done: bool = False
    """Whether the environment ended it."""
    turns: int = 0
    """Number of replies of the model."""
    tool_calls: int = 0
    """Number of complete tool calls; one that the token limit truncated is not counted."""
    malformed_calls: int = 0
    """Complete calls that were not JSON, named an unknown tool or had invalid arguments."""
    error: EpisodeFault | None = None
    timing: Timing | None = None
    tokens: Tokens | None = None

    @property
    def broken(self) -> bool:
        """Whether the infrastructure ended it; it is unscored then."""
        return self.stop_reason.is_fault

    @property
    def cut_off(self) -> bool:
        """Whether a token limit, or the end of the model's context, ended it."""
        return self.stop_reason is StopReason.MAX_TOKENS

    @property
    def format_compliant(self) -> bool | None:
        """Whether every complete reply had a well-formed tool call.

        None if there was no complete reply, because a token limit truncated all of them.
        """
        if self.malformed_calls or self.stop_reason in _WITHOUT_CALL:
            return False
        return True if self.tool_calls else None

    @field_validator(*OMITTED_IF_EMPTY, mode="before")
    @classmethod
    def _read_null_as_empty(cls, value: object) -> object:
        """`datasets` and Parquet have null if a line has no such field."""
        return () if value is None else value

    def to_line(self) -> bytes:
        empty = {name for name in OMITTED_IF_EMPTY if not getattr(self, name)}
        try:
            return self.__pydantic_serializer__.to_json(self, exclude=empty) + b"\n"
        except ValueError as error:
            if isinstance(error.__cause__, KeyboardInterrupt | SystemExit):
                raise error.__cause__ from None  # A signal arrived, and pydantic wrapped it.
            # A lone surrogate: a model can write \\ud800, which cannot be encoded as UTF-8.
            fields = self.__pydantic_serializer__.to_python(self, mode="json", exclude=empty)
            return to_json(_replace_surrogates(fields)) + b"\n"

    @classmethod
    def from_line(cls, line: bytes) -> Episode:
        return cls.model_validate_json(line.removeprefix(BOM_UTF8))


def task_group_id(environment: str, task: Mapping[str, object]) -> str:
    """The `group_id` of a task's episodes, which is the same in every run."""
    text = json.dumps([environment, task], sort_keys=True, ensure_ascii=False, default=str)
    return f"{stable_hash(text):016x}"


def _replace_surrogates(value: object) -> object:
    """Replace lone surrogates in the fields of an episode, so that its line can be encoded."""
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, dict):
        return {_replace_surrogates(key): _replace_surrogates(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_replace_surrogates(item) for item in value]
    return value


def format_episode_id(run: str, index: int) -> str:
    """The id of an episode: eight hex digits of its run, and its index in the plan."""
    return f"{run}-{index:06d}"
