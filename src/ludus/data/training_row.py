"""Rows of training data: one conversation for SFT, two for DPO; and the length they are cut at.

Rows come from `ludus curate`, or are in TRL's conversational formats: `messages`, `prompt` and
`completion`, or `chosen` and `rejected`, with or without `prompt`; and `tools` with any of them.
They are taken exactly as written; only what no trainer could read is an error.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import takewhile
from typing import Literal

from pydantic_core import from_json

from ludus.data.tool_schema import JsonObject

RowKind = Literal["sft", "dpo"]


class InvalidRow(ValueError):
    """A row that cannot be trained on. The message continues the location of the row."""


@dataclass(frozen=True, slots=True)
class RowConversation:
    """A conversation to train on: the whole row, or one side of a preference pair."""

    name: Literal["", "chosen", "rejected"]
    """Empty if the row is not a pair."""
    messages: list[JsonObject]
    prompt_length: int
    """Number of messages from the `prompt` column; 0 if the row has only `messages`."""

    @property
    def completion(self) -> list[JsonObject]:
        """The messages after the prompt."""
        return self.messages[self.prompt_length :]

    @property
    def replies(self) -> list[JsonObject]:
        """The assistant messages after the prompt that bear loss."""
        messages = (message for message in self.completion if message["role"] == "assistant")
        return [message for message in messages if message.get("weight") != 0]


@dataclass(frozen=True, slots=True)
class TrainingRow:
    """One row."""

    conversations: tuple[RowConversation, ...]
    """One, or the chosen and the rejected side of a pair."""
    tools: list[JsonObject] | None

    @property
    def is_pair(self) -> bool:
        return len(self.conversations) > 1


def parse_row_columns(row: bytes | JsonObject) -> JsonObject:
    """The columns of a row, which may be a line of JSONL; raises `InvalidRow`."""
    if not isinstance(row, bytes):
        return row
    try:
        columns = from_json(row)
    except ValueError as error:
        raise InvalidRow(f"is not JSON: {error}") from error
    if not isinstance(columns, dict):
        raise InvalidRow("is not a JSON object")
    return columns


def row_kind(columns: JsonObject) -> RowKind | None:
    """What a row trains, by its columns; None if it has none of them."""
    if {"chosen", "rejected"} <= columns.keys():
        return "dpo"
    return "sft" if "messages" in columns or {"prompt", "completion"} <= columns.keys() else None


def parse_training_row(columns: JsonObject) -> TrainingRow:
    """Parse a row that has a `row_kind`; raises `InvalidRow` if a column has the wrong content."""
    tools = columns.get("tools")
    if isinstance(tools, str):
        try:
            tools = from_json(tools) if tools.strip() else None
        except ValueError as error:
            raise InvalidRow(f"has `tools` that are not JSON: {error}") from error
    if tools is not None and not (isinstance(tools, list) and all(map(_has_name, tools))):
        raise InvalidRow("has `tools` that are not a list of named tools")
    if row_kind(columns) == "dpo":
        prompt: list[JsonObject] = []
        if columns.get("prompt"):
            prompt = _parse_messages(columns, "prompt")
        chosen, rejected = (
            [*prompt, *_parse_messages(columns, side)] for side in ("chosen", "rejected")
        )
        shared = len(prompt)
        if not prompt:
            # The prompt is the common prefix of both sides.
            pairs = zip(chosen, rejected, strict=False)
            shared = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
        sides = (
            RowConversation("chosen", chosen, shared),
            RowConversation("rejected", rejected, shared),
        )
        return TrainingRow(sides, tools)
    if "messages" in columns:
        messages = _parse_messages(columns, "messages")
        return TrainingRow((RowConversation("", messages, 0),), tools)
    prompt = _parse_messages(columns, "prompt")
    messages = [*prompt, *_parse_messages(columns, "completion")]
    return TrainingRow((RowConversation("", messages, len(prompt)),), tools)


def _parse_messages(columns: JsonObject, name: str) -> list[JsonObject]:
    messages = columns.get(name)
    if not isinstance(messages, list):
        raise InvalidRow(f"has `{name}` that is not a list of messages")
    for at, message in enumerate(messages):
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            raise InvalidRow(f"has `{name}[{at}]` that is not a message with a `role`")
        calls = message.get("tool_calls")
        if calls is not None and not (isinstance(calls, list) and all(map(_has_name, calls))):
            raise InvalidRow(
                f"has `{name}[{at}].tool_calls` that are not a list of calls with a `name`"
            )
    return messages


def _has_name(value: object) -> bool:
    """Whether a tool or a tool call has a name."""
    function = value.get("function", value) if isinstance(value, dict) else None
    return isinstance(function, dict) and isinstance(function.get("name"), str)


LENGTH_MARGIN = 16
LENGTH_MULTIPLE = 64


def quantile(counts: Mapping[int, int], share: float) -> int:
    """The smallest length in tokens that at least this share of the rows does not exceed."""
    target, cumulative = share * sum(counts.values()), 0
    for length in sorted(counts):
        cumulative += counts[length]
        if cumulative >= target:
            return length
    return 0


def suggest_max_length(counts: Mapping[int, int]) -> int:
    """Suggest a maximum length that truncates at most 1 % of the rows, rounded up.

    It ignores the few longest rows, for which all others would be padded, and never exceeds the
    longest row.
    """
    rounded = -(-(quantile(counts, 0.99) + LENGTH_MARGIN) // LENGTH_MULTIPLE) * LENGTH_MULTIPLE
    return min(rounded, max(counts, default=0))
