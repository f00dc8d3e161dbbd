"""Tool calls on their way from an API and back to it, made such that every API takes them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from pydantic_core import from_json

from ludus.data.messages import Call, Function, Message
from ludus.data.tool_schema import JsonObject

_INVALID_NAME_CHARS = re.compile(r"[^a-zA-Z0-9_-]")


class RawToolCall(NamedTuple):
    """A call as a server sent it; any of it may be missing or odd."""

    identity: Any
    name: Any
    arguments: Any


def parse_tool_calls(calls: Iterable[RawToolCall], messages: Sequence[Message]) -> tuple[Call, ...]:
    """The calls, each with an identity that no other call of the episode has.

    A server's own are kept where they are unique. New ones come from the place in the episode, so
    that the same episode has the same.
    """
    used = {call.id for message in messages for call in message.tool_calls or ()}
    read: list[Call] = []
    for number, (identity, name, arguments) in enumerate(calls):
        if not isinstance(identity, str) or not identity or identity in used:
            identity = f"call_{len(messages)}_{number}"
            while identity in used:
                identity += "_"
        used.add(identity)
        function = Function(name=str(name or ""), arguments=_arguments_json(arguments))
        read.append(Call(id=identity, function=function))
    return tuple(read)


def _arguments_json(arguments: Any) -> str:
    if isinstance(arguments, str):
        return arguments
    return "{}" if arguments is None else json.dumps(arguments, ensure_ascii=False)


def sanitize_name(name: str) -> str:
    """A name or identity that APIs take back: models make up some that they would refuse."""
    return _INVALID_NAME_CHARS.sub("_", name)[:64] or "_"


def parse_arguments(arguments: str) -> JsonObject | None:
    """The arguments of a call; None if they are no JSON object.

    Some servers parse what they are sent and refuse the whole request for it. What was wrong the
    model is told by the tool's error.
    """
    try:
        parsed = from_json(arguments)
    except ValueError:
        return None
    return parsed if isinstance(parsed, dict) else None
