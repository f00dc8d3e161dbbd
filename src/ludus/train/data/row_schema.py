"""The schema of rows: parsed into one conversation for SFT, two for DPO.

Rows are those that `ludus curate` writes, or others in TRL's conversational formats: `messages`,
`prompt` and `completion`, or `prompt`, `chosen` and `rejected`; and `tools` with any of them. An
assistant message with a `weight` of 0 is context without loss, as in OpenAI's format.
"""

from __future__ import annotations

from itertools import takewhile
from typing import Any

from pydantic_core import from_json

from ludus.data.tool_schema import JsonObject, parse_arguments
from ludus.errors import ConfigError
from ludus.policy.chat.rendering import Conversation
from ludus.train.config import Method

Messages = list[JsonObject]
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


class InvalidRow(ValueError):
    """A row that cannot be trained on. The message continues the location of the row."""


def parse_conversations(row: bytes | JsonObject, method: Method) -> list[Conversation]:
    """The conversation of an SFT row, or the chosen and the rejected one of a DPO row."""
    fields = parse_row_columns(row)
    row_method: Method | None = None
    if {"chosen", "rejected"} <= fields.keys():
        row_method = "dpo"
    elif "messages" in fields or {"prompt", "completion"} <= fields.keys():
        row_method = "sft"
    if row_method is None:
        columns = ", ".join(map(str, fields)) or "none"
        raise InvalidRow(f"has no {_EXPECTED_COLUMNS[method]}; its columns are {columns}")
    if row_method != method:
        raise ConfigError(
            f"These are rows for {row_method.upper()}, with {_EXPECTED_COLUMNS[row_method]}. "
            f"Train on them with `ludus train {row_method}`."
        )
    tools = _parse_tools_column(fields.get("tools"))
    prompt: Messages = []
    if method == "dpo":
        chosen = _parse_messages_column(fields, "chosen")
        rejected = _parse_messages_column(fields, "rejected")
        if fields.get("prompt"):
            prompt, sides = _parse_messages_column(fields, "prompt"), [chosen, rejected]
        else:
            # The prompt is the common prefix of both sides.
            pairs = zip(chosen, rejected, strict=False)
            shared = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
            prompt, sides = chosen[:shared], [chosen[shared:], rejected[shared:]]
    elif "messages" in fields:
        sides = [_parse_messages_column(fields, "messages")]
    else:
        prompt = _parse_messages_column(fields, "prompt")
        sides = [_parse_messages_column(fields, "completion")]
    return [Conversation([*prompt, *side], tools, len(prompt)) for side in sides]


def parse_row_columns(row: bytes | JsonObject) -> JsonObject:
    """The columns of a training row, which may be a line of JSONL; raises `InvalidRow`."""
    if not isinstance(row, bytes):
        return row
    try:
        fields = from_json(row)
    except ValueError as error:
        raise InvalidRow(f"is not JSON: {error}") from error
    if not isinstance(fields, dict):
        raise InvalidRow("is not a JSON object")
    return fields


def _parse_messages_column(fields: JsonObject, column: str) -> Messages:
    """The messages in a column of a training row; raises `InvalidRow`."""
    messages = fields.get(column)
    if isinstance(messages, str):
        raise InvalidRow(f"has text in `{column}`, where a list of messages is expected")
    if not isinstance(messages, list) or not messages:
        raise InvalidRow(f"has no messages in `{column}`")
    if not all(isinstance(each, dict) and isinstance(each.get("role"), str) for each in messages):
        raise InvalidRow(f"has an item in `{column}` that is not a message with a `role`")
    return [_parse_row_message(each) for each in messages]


def _parse_row_message(message: JsonObject) -> JsonObject:
    """A message of a training row as chat templates expect it.

    The arguments of tool calls become objects instead of JSON text.
    """
    weight = message.get("weight")
    if weight is not None and (isinstance(weight, bool) or weight not in (0, 1)):
        raise InvalidRow(f"has a message with the `weight` {weight!r}, which must be 0 or 1")
    calls = message.get("tool_calls")
    if not calls:
        return message
    if not isinstance(calls, list) or not all(isinstance(call, dict) for call in calls):
        raise InvalidRow("has `tool_calls` that are not a list of calls")
    parsed = []
    for call in calls:
        function = call.get("function", call)
        if not isinstance(function, dict) or not isinstance(name := function.get("name"), str):
            raise InvalidRow("has a tool call without a `name`")
        arguments = function.get("arguments")
        if isinstance(arguments, str) and (arguments := parse_arguments(arguments)) is None:
            raise InvalidRow(f"has a call of {name} whose arguments are no JSON object")
        function = {**function, "arguments": arguments or {}}
        parsed.append({**call, "type": "function", "function": function})
    return {**message, "tool_calls": parsed}


def _parse_tools_column(tools: Any) -> list[JsonObject] | None:
    """The tools of a training row, which may be JSON text; raises `InvalidRow`."""
    if isinstance(tools, str):
        try:
            tools = from_json(tools) if tools.strip() else None
        except ValueError as error:
            raise InvalidRow(f"has `tools` that are not JSON: {error}") from error
    if tools and not (isinstance(tools, list) and all(isinstance(tool, dict) for tool in tools)):
        raise InvalidRow("has `tools` that are not a list of tools")
    return tools or None
