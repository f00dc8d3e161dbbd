"""The items of OpenAI's Responses API, gathered into chat messages.

There a reply is several items: what was thought, what was said, and each call on its own. Here it
is one message. An item belongs to the reply before it unless a reply could not go on that way:
thoughts come first, then words, then calls.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ludus.curate.importers.chat import as_json
from ludus.curate.importers.reading import Malformed, an_object
from ludus.data.tools import JsonObject

_CALLS = {"function_call": "arguments", "custom_tool_call": "input", "mcp_call": "arguments"}
_ANSWERS = ("function_call_output", "custom_tool_call_output")
_MODELS = (*_CALLS, "reasoning")
_TOKENS = ("prompt_token_ids", "generation_token_ids", "generation_log_probs", "routed_experts")
_IN_PASSING = ("id", "status", "phase", "type", *_TOKENS)


def items_of(value: Any, what: str) -> list[JsonObject]:
    """A list of items. A string is what the user said, and null is nothing."""
    if value is None:
        return []
    if isinstance(value, str):
        return [{"role": "user", "content": value}]
    if not isinstance(value, list):
        raise Malformed(f"{what} is not a list")
    return [an_object(item, f"an item of {what}") for item in value]


def replies_of(given: list[JsonObject], output: Any) -> Iterator[list[JsonObject]]:
    """What is new in an output, call by call of the model.

    Some environments write a list of lists: after each call everything so far, the prompt too.
    Only what was not there before is new. A state that they hide later on is kept as it was when
    the model first saw it.
    """
    nested = isinstance(output, list) and any(isinstance(part, list) for part in output)
    seen: list[JsonObject] = []
    for part in output if nested else [output]:
        items = items_of(part, "output")
        known = next((old for old in ([*given, *seen], seen) if _repeats(items, old)), [])
        yield items[len(known) :]
        seen += items[len(known) :]


def chat_of(items: list[JsonObject]) -> Iterator[JsonObject]:
    """Chat messages, in the form that `messages_of` takes."""
    reply: JsonObject = {}
    for item in items:
        kind = item.get("type") or "message"
        if not (_by_model(item) and _goes_on(reply, item)):
            yield from _said(reply)
            reply = {}
        if _by_model(item):
            reply = _with(reply, item)
        elif kind in _ANSWERS:
            yield _answer(item.get("call_id"), item.get("output"), item.get("name"))
        elif kind == "message":
            yield {**item, "content": item.get("content") or ""}
        else:
            raise Malformed(f"an item of type {kind!r} is neither a message nor a tool call")
        if kind == "mcp_call":  # The provider itself has called the tool, and says what came of it.
            yield from _said(reply)
            reply = {}
            result = item.get("output")
            answer = item.get("error") if result is None else result
            yield _answer(item.get("call_id") or item.get("id"), answer, item.get("name"))
    yield from _said(reply)


def _goes_on(reply: JsonObject, item: JsonObject) -> bool:
    if item.get("type") == "reasoning":
        return reply.keys() == {"reasoning"}
    return item.get("type") in _CALLS or reply.keys() == {"reasoning"}


def _with(reply: JsonObject, item: JsonObject) -> JsonObject:
    kind = item.get("type")
    if kind == "reasoning":
        return {"reasoning": [*reply.get("reasoning", ()), *_thoughts(item)]}
    if kind in _CALLS:
        function = {"name": item.get("name"), "arguments": item.get(_CALLS[kind])}
        call = {"id": item.get("call_id") or item.get("id"), "function": function}
        return {**reply, "tool_calls": [*reply.get("tool_calls", ()), call]}
    return reply | {"content": item.get("content") or ""} | _chat_fields(item)


def _chat_fields(item: JsonObject) -> JsonObject:
    """What a message in chat form says besides: inputs are sometimes written that way."""
    names = ("tool_calls", "function_call", "name", "reasoning_content")
    return {name: item[name] for name in names if item.get(name)}


def _said(reply: JsonObject) -> Iterator[JsonObject]:
    """The message of a reply. Thoughts that nobody may read, and nothing else, are none."""
    thoughts = "\n\n".join(reply.get("reasoning", ()))
    said = {name: value for name, value in reply.items() if name != "reasoning"}
    if thoughts:
        said["reasoning_content"] = thoughts
    if said:
        yield {"role": "assistant", **said}


def _answer(call: Any, output: Any, name: Any) -> JsonObject:
    plain = output is None or isinstance(output, str | list)
    content = (output or "") if plain else as_json(output)
    return {"role": "tool", "tool_call_id": call, "content": content, "name": name}


def _thoughts(item: JsonObject) -> Iterator[str]:
    """The thoughts themselves where they are given, else their summary."""
    for part in item.get("content") or item.get("summary") or ():
        words = part.get("text") if isinstance(part, dict) else part
        if not isinstance(words, str):
            raise Malformed("a thought is not text")
        if words:
            yield words


def _repeats(items: list[JsonObject], old: list[JsonObject]) -> bool:
    """Whether `items` begins with `old`.

    What the model said must be the same. What it was shown may have been hidden since, but only
    where the model's own words before or after it show that this is the same conversation.
    """
    pairs = list(zip(old, items, strict=False))
    if not old or len(pairs) < len(old):
        return False
    ours = [_identity(mine) == _identity(its) for mine, its in pairs if _by_model(mine)]
    if any(ours):
        return all(ours) and all(_place(mine) == _place(its) for mine, its in pairs)
    return all(_identity(mine) == _identity(its) for mine, its in pairs)


def _by_model(item: JsonObject) -> bool:
    return item.get("type") in _MODELS or item.get("role") == "assistant"


def _place(item: JsonObject) -> tuple[Any, ...]:
    return item.get("type") or "message", item.get("role"), item.get("call_id")


def _identity(item: JsonObject) -> Any:
    said = {name: value for name, value in item.items() if name not in _IN_PASSING}
    return _place(item), said
