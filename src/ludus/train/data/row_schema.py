"""Rows as conversations to render, and the columns of tokenized rows.

An assistant message with a `weight` of 0 is context without loss, as in OpenAI's format.
"""

from __future__ import annotations

from ludus.data.tool_schema import JsonObject, parse_arguments
from ludus.data.training_row import (
    InvalidRow,
    parse_row_columns,
    parse_training_row,
    row_kind,
)
from ludus.errors import ConfigError
from ludus.policy.chat.rendering import Conversation
from ludus.train.config import Method

TOKEN_COLUMNS: dict[Method, tuple[tuple[str, str], ...]] = {
    "sft": (("input_ids", "labels"),),
    "dpo": (("chosen_ids", "chosen_labels"), ("rejected_ids", "rejected_labels")),
}
"""The columns of a tokenized row: tokens and labels of each side."""
IMAGE_COLUMNS: dict[Method, tuple[str, ...]] = {
    "sft": ("row_images",),
    "dpo": ("chosen_images", "rejected_images"),
}
"""The data URLs of each side's images, in tokenized rows for models that take images."""
ROW_COLUMN = "row"
"""The number of a tokenized row in its source."""
_EXPECTED_COLUMNS = {
    "sft": "`messages`, or `prompt` and `completion`",
    "dpo": "`prompt`, `chosen` and `rejected`",
}
_TRAINED_COLUMNS = ("messages", "completion", "chosen", "rejected")


def parse_conversations(row: bytes | JsonObject, method: Method) -> list[Conversation]:
    """The conversation of an SFT row, or the chosen and the rejected one of a DPO row.

    The arguments of tool calls become objects instead of JSON text, as chat templates expect them.
    """
    columns = parse_row_columns(row)
    kind = row_kind(columns)
    if kind is None:
        names = ", ".join(map(str, columns)) or "none"
        raise InvalidRow(f"has no {_EXPECTED_COLUMNS[method]}; its columns are {names}")
    if kind != method:
        raise ConfigError(
            f"These are rows for {kind.upper()}, with {_EXPECTED_COLUMNS[kind]}. Train on them "
            f"with `ludus train {kind}`."
        )
    parsed = parse_training_row(columns)
    if empty := [name for name in _TRAINED_COLUMNS if columns.get(name) == []]:
        raise InvalidRow(f"has no messages in `{empty[0]}`")
    return [
        Conversation(list(map(_prepare, side.messages)), parsed.tools or None, side.prompt_length)
        for side in parsed.conversations
    ]


def _prepare(message: JsonObject) -> JsonObject:
    weight = message.get("weight")
    if weight is not None and (isinstance(weight, bool) or weight not in (0, 1)):
        raise InvalidRow(f"has a message with the `weight` {weight!r}, which must be 0 or 1")
    calls = []
    for call in message.get("tool_calls") or ():
        function = call.get("function", call)
        arguments = function.get("arguments")
        if isinstance(arguments, str) and (arguments := parse_arguments(arguments)) is None:
            raise InvalidRow(f"has a call of {function['name']} whose arguments are no JSON object")
        function = {**function, "arguments": arguments or {}}
        calls.append({**call, "type": "function", "function": function})
    return {**message, "tool_calls": calls} if calls else message
