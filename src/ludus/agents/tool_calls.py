"""Tool calls from and to an API, normalized such that every API accepts them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from pydantic_core import from_json

from ludus.data.messages import Call, Function, Message
from ludus.data.tool_schema import JsonObject, ToolCall

_INVALID_NAME_CHARS = re.compile(r"[^a-zA-Z0-9_-]")


class RawToolCall(NamedTuple):
    """A call as a server sent it; any part may be missing or of the wrong type."""

    id: Any
    name: Any
    arguments: Any


def parse_tool_calls(calls: Iterable[RawToolCall], messages: Sequence[Message]) -> tuple[Call, ...]:
    """The calls, each with an id that no other call of the episode has.

    A server's ids are kept where they are unique. New ones are made from the position in the
    episode, so that they are reproducible.
    """
    used_ids = {call.id for message in messages for call in message.tool_calls or ()}
    parsed: list[Call] = []
    for number, (call_id, name, arguments) in enumerate(calls):
        if not isinstance(call_id, str) or not call_id or call_id in used_ids:
            call_id = f"call_{len(messages)}_{number}"
            while call_id in used_ids:
                call_id += "_"
        used_ids.add(call_id)
        if not isinstance(arguments, str):
            arguments = "{}" if arguments is None else json.dumps(arguments, ensure_ascii=False)
        parsed.append(
            Call(id=call_id, function=Function(name=str(name or ""), arguments=arguments))
        )
    return tuple(parsed)


def sanitize_name(name: str) -> str:
    """A name or id that APIs accept; models make up some that they would refuse."""
    return _INVALID_NAME_CHARS.sub("_", name)[:64] or "_"


def parse_arguments(arguments: str) -> JsonObject | None:
    """The arguments of a call; None if they are not a JSON object.

    Some servers refuse a whole request because of invalid arguments in an earlier turn, so they are
    not sent back. The tool's error has told the model what was wrong.
    """
    try:
        parsed = from_json(arguments)
    except ValueError:
        return None
    return parsed if isinstance(parsed, dict) else None


def build_tool_call_message(*calls: ToolCall | None, position: int) -> Message:
    """An assistant's message with these calls and their text, without the calls that are None.

    `position` is its index in the conversation, from which the ids of the calls are made.
    """
    made = [call for call in calls if call is not None]
    tool_calls = tuple(
        Call(
            id=f"call_{position}_{number}",
            function=Function(
                name=call.name, arguments=json.dumps(call.arguments, ensure_ascii=False)
            ),
        )
        for number, call in enumerate(made)
    )
    text = "\n".join(call.text for call in made if call.text)
    return Message(role="assistant", content=text, tool_calls=tool_calls or None)
