"""The items of OpenAI's Responses API, gathered into chat messages.

There a reply is several items: what was thought, what was said, and each call on its own. Here it
is one message. An item belongs to the reply before it unless a reply could not go on that way:
thoughts come first, then words, then calls.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ludus.curation.importers.base import FormatError, require_object
from ludus.curation.importers.chat_messages import dump_json
from ludus.data.tool_schema import JsonObject

_ARGUMENTS_KEY_BY_CALL_TYPE = {
    "function_call": "arguments",
    "custom_tool_call": "input",
    "mcp_call": "arguments",
}
_OUTPUT_TYPES = ("function_call_output", "custom_tool_call_output")
_MODEL_TYPES = (*_ARGUMENTS_KEY_BY_CALL_TYPE, "reasoning")
_TOKEN_FIELDS = (
    "prompt_token_ids",
    "generation_token_ids",
    "generation_log_probs",
    "routed_experts",
)
_VOLATILE_FIELDS = ("id", "status", "phase", "type", *_TOKEN_FIELDS)


def parse_items(value: Any, name: str) -> list[JsonObject]:
    """A list of items. A string is what the user said, and null is nothing."""
    if value is None:
        return []
    if isinstance(value, str):
        return [{"role": "user", "content": value}]
    if not isinstance(value, list):
        raise FormatError(f"{name} is not a list")
    return [require_object(item, f"an item of {name}") for item in value]


def iter_new_items(given: list[JsonObject], output: Any) -> Iterator[list[JsonObject]]:
    """What is new in an output, call by call of the model.

    Some environments write a list of lists: after each call everything so far, the prompt too.
    Only what was not there before is new. A state that they hide later on is kept as it was when
    the model first saw it.
    """
    nested = isinstance(output, list) and any(isinstance(part, list) for part in output)
    seen: list[JsonObject] = []
    for part in output if nested else [output]:
        items = parse_items(part, "output")
        known = next((old for old in ([*given, *seen], seen) if _is_continuation(items, old)), [])
        yield items[len(known) :]
        seen += items[len(known) :]


def to_chat_messages(items: list[JsonObject]) -> Iterator[JsonObject]:
    """Chat messages, in the form that `messages_of` takes."""
    reply: JsonObject = {}
    for item in items:
        kind = item.get("type") or "message"
        if not (_is_model_item(item) and _continues_reply(reply, item)):
            yield from _finish_reply(reply)
            reply = {}
        if _is_model_item(item):
            reply = _extend_reply(reply, item)
        elif kind in _OUTPUT_TYPES:
            yield _tool_message(item.get("call_id"), item.get("output"), item.get("name"))
        elif kind == "message":
            yield {**item, "content": item.get("content") or ""}
        else:
            raise FormatError(f"an item of type {kind!r} is neither a message nor a tool call")
        if kind == "mcp_call":  # The provider itself has called the tool, and says what came of it.
            yield from _finish_reply(reply)
            reply = {}
            result = item.get("output")
            answer = item.get("error") if result is None else result
            yield _tool_message(item.get("call_id") or item.get("id"), answer, item.get("name"))
    yield from _finish_reply(reply)


def _continues_reply(reply: JsonObject, item: JsonObject) -> bool:
    if item.get("type") == "reasoning":
        return reply.keys() == {"reasoning"}
    return item.get("type") in _ARGUMENTS_KEY_BY_CALL_TYPE or reply.keys() == {"reasoning"}


def _extend_reply(reply: JsonObject, item: JsonObject) -> JsonObject:
    kind = item.get("type")
    if kind == "reasoning":
        return {"reasoning": [*reply.get("reasoning", ()), *_reasoning_texts(item)]}
    if kind in _ARGUMENTS_KEY_BY_CALL_TYPE:
        function = {
            "name": item.get("name"),
            "arguments": item.get(_ARGUMENTS_KEY_BY_CALL_TYPE[kind]),
        }
        call = {"id": item.get("call_id") or item.get("id"), "function": function}
        return {**reply, "tool_calls": [*reply.get("tool_calls", ()), call]}
    return reply | {"content": item.get("content") or ""} | _chat_fields(item)


def _chat_fields(item: JsonObject) -> JsonObject:
    """What a message in chat form says besides: inputs are sometimes written that way."""
    names = ("tool_calls", "function_call", "name", "reasoning_content")
    return {name: item[name] for name in names if item.get(name)}


def _finish_reply(reply: JsonObject) -> Iterator[JsonObject]:
    """The message of a reply. Thoughts that nobody may read, and nothing else, are none."""
    thoughts = "\n\n".join(reply.get("reasoning", ()))
    said = {name: value for name, value in reply.items() if name != "reasoning"}
    if thoughts:
        said["reasoning_content"] = thoughts
    if said:
        yield {"role": "assistant", **said}


def _tool_message(call: Any, output: Any, name: Any) -> JsonObject:
    plain = output is None or isinstance(output, str | list)
    content = (output or "") if plain else dump_json(output)
    return {"role": "tool", "tool_call_id": call, "content": content, "name": name}


def _reasoning_texts(item: JsonObject) -> Iterator[str]:
    """The thoughts themselves where they are given, else their summary."""
    for part in item.get("content") or item.get("summary") or ():
        words = part.get("text") if isinstance(part, dict) else part
        if not isinstance(words, str):
            raise FormatError("a thought is not text")
        if words:
            yield words


def _is_continuation(items: list[JsonObject], old: list[JsonObject]) -> bool:
    """Whether `items` begins with `old`.

    What the model said must be the same. What it was shown may have been hidden since, but only
    where the model's own words before or after it show that this is the same conversation.
    """
    pairs = list(zip(old, items, strict=False))
    if not old or len(pairs) < len(old):
        return False
    ours = [
        _item_identity(mine) == _item_identity(its) for mine, its in pairs if _is_model_item(mine)
    ]
    if any(ours):
        return all(ours) and all(_item_key(mine) == _item_key(its) for mine, its in pairs)
    return all(_item_identity(mine) == _item_identity(its) for mine, its in pairs)


def _is_model_item(item: JsonObject) -> bool:
    return item.get("type") in _MODEL_TYPES or item.get("role") == "assistant"


def _item_key(item: JsonObject) -> tuple[Any, ...]:
    return item.get("type") or "message", item.get("role"), item.get("call_id")


def _item_identity(item: JsonObject) -> Any:
    said = {name: value for name, value in item.items() if name not in _VOLATILE_FIELDS}
    return _item_key(item), said
