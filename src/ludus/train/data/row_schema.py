"""What a row means: the conversations of which a model learns, one for SFT, two for DPO.

Pure functions. Rows are those that `ludus curate` writes, or others of TRL's forms: `messages`,
`prompt` with `completion`, or `prompt` with `chosen` and `rejected`, and `tools` beside them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import Any

from pydantic_core import from_json

from ludus.data.tool_schema import JsonObject, parse_arguments
from ludus.errors import ConfigError
from ludus.policy.chat.rendering import Conversation
from ludus.policy.vision.model_families import SUPPORTED_FAMILIES
from ludus.policy.vision.processor import VisionProcessor
from ludus.policy.vision.row_images import (
    ContentPartError,
    has_content_parts,
    has_images,
    image_urls,
    to_text_messages,
)
from ludus.train.config import Method

Messages = list[JsonObject]
_OTHER_METHOD = {"sft": "dpo", "dpo": "sft"}
_EXPECTED_COLUMNS = {
    "sft": "`messages`, or `prompt` and `completion`",
    "dpo": "`prompt`, `chosen` and `rejected`",
}


class InvalidRow(ValueError):
    """A row that cannot be trained on; where it stands is added by who read it."""


def parse_conversations(row: bytes | JsonObject, method: Method) -> list[Conversation]:
    """One for SFT; for DPO the better and the worse."""
    fields = parse_row(row)
    if _method_for(fields) != method:
        raise _wrong_columns_error(fields, method)
    tools = _parse_tools(fields.get("tools"))
    prompt: Messages = []
    if method == "dpo":
        prompt, *sides = _parse_pair(fields)
    elif "messages" in fields:
        sides = [_parse_messages(fields, "messages")]
    else:
        prompt, sides = _parse_messages(fields, "prompt"), [_parse_messages(fields, "completion")]
    return [Conversation([*prompt, *side], tools, len(prompt)) for side in sides]


@dataclass(frozen=True, slots=True)
class TextAndImages:
    """A conversation as a model is shown it."""

    conversation: Conversation
    images: Sequence[str] = ()
    """The data URLs of its images; a mark stands for each in the text."""


def separate_images(conversation: Conversation, vision: VisionProcessor | None) -> TextAndImages:
    """For a model with these eyes; images are refused for one that has none."""
    if not has_content_parts(conversation.messages):
        return TextAndImages(conversation)
    if vision is None:
        if has_images(conversation.messages):
            raise InvalidRow(
                f"shows images, and this model reads only text; use one of {SUPPORTED_FAMILIES}"
            )
        return TextAndImages(conversation)
    try:
        images = image_urls(conversation.messages)
        return TextAndImages(
            replace(conversation, messages=to_text_messages(conversation.messages, vision)), images
        )
    except ContentPartError as error:
        raise InvalidRow(str(error)) from error


def iter_tool_calls(messages: Sequence[Any]) -> Iterator[JsonObject]:
    """The functions that were called in some messages."""
    for message in messages:
        for call in message.get("tool_calls") or ():
            yield call.get("function") or call


def parse_row(row: bytes | JsonObject) -> JsonObject:
    """A row with its columns, whether it was parsed before or not."""
    if not isinstance(row, bytes):
        return row
    try:
        fields = from_json(row)
    except ValueError as error:
        raise InvalidRow(f"is no JSON: {error}") from error
    if not isinstance(fields, dict):
        raise InvalidRow("is no JSON object")
    return fields


def _method_for(fields: JsonObject) -> Method | None:
    if "chosen" in fields and "rejected" in fields:
        return "dpo"
    return "sft" if "messages" in fields or {"prompt", "completion"} <= fields.keys() else None


def _wrong_columns_error(fields: JsonObject, method: Method) -> Exception:
    if _method_for(fields) is None:
        columns = ", ".join(map(str, fields)) or "none"
        return InvalidRow(f"has no {_EXPECTED_COLUMNS[method]}; its columns are {columns}")
    other = _OTHER_METHOD[method]
    return ConfigError(
        f"These are rows for {other.upper()}, with {_EXPECTED_COLUMNS[other]}. "
        f"Train on them with `ludus train {other}`."
    )


def _parse_pair(fields: JsonObject) -> tuple[Messages, Messages, Messages]:
    """What both sides begin with is the prompt, where none is given apart."""
    chosen, rejected = _parse_messages(fields, "chosen"), _parse_messages(fields, "rejected")
    if fields.get("prompt"):
        return _parse_messages(fields, "prompt"), chosen, rejected
    both = takewhile(lambda pair: pair[0] == pair[1], zip(chosen, rejected, strict=False))
    shared = sum(1 for _ in both)
    return chosen[:shared], chosen[shared:], rejected[shared:]


def _parse_messages(fields: JsonObject, column: str) -> Messages:
    found = fields.get(column)
    if isinstance(found, str):
        raise InvalidRow(f"has text in `{column}`, where a list of messages is wanted")
    if not isinstance(found, list) or not found:
        raise InvalidRow(f"has no messages in `{column}`")
    if not all(isinstance(each, dict) and isinstance(each.get("role"), str) for each in found):
        raise InvalidRow(f"has something in `{column}` that is no message with a `role`")
    return [_parse_message(each) for each in found]


def _parse_message(message: JsonObject) -> JsonObject:
    """As chat templates want it: what a call was given as an object, not as its text."""
    made = message.get("tool_calls")
    if not made:
        return message
    if not isinstance(made, list) or not all(isinstance(call, dict) for call in made):
        raise InvalidRow("has `tool_calls` that are no list of calls")
    return {**message, "tool_calls": [_parse_call(call) for call in made]}


def _parse_call(call: JsonObject) -> JsonObject:
    function = call.get("function", call)
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise InvalidRow("has a call without a `name`")
    arguments = function.get("arguments")
    if isinstance(arguments, str):
        arguments = parse_arguments(arguments)
        if arguments is None:
            raise InvalidRow(f"has a call of {function['name']} whose arguments are no JSON object")
    return {**call, "type": "function", "function": {**function, "arguments": arguments or {}}}


def _parse_tools(found: Any) -> list[JsonObject] | None:
    if isinstance(found, str):
        try:
            found = from_json(found) if found.strip() else None
        except ValueError as error:
            raise InvalidRow(f"has `tools` that are no JSON: {error}") from error
    if found and not (isinstance(found, list) and all(isinstance(tool, dict) for tool in found)):
        raise InvalidRow("has `tools` that are no list of tools")
    return found or None
