"""The ids of a conversation while it is played: the prompt, and what is put between two replies.

What a model has sampled stays as it was sampled: nothing here turns ids into text and back. A
template writes whole conversations, so what stands between two replies is found by rendering a
short one with the results in it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ludus.data.messages import Message
from ludus.policy.dialect import Dialect
from ludus.policy.reading import read_reply
from ludus.policy.templates import Tools, render

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Said = Message | Mapping[str, Any]


def opening(
    tokenizer: PreTrainedTokenizerBase, dialect: Dialect, messages: Sequence[Said], tools: Tools
) -> list[int]:
    """The prompt, up to where the model's reply begins."""
    given = [as_given(each) for each in messages]
    return list(render(tokenizer, given, tools or None, dialect.template, asks=True).ids)


def answers(
    tokenizer: PreTrainedTokenizerBase,
    dialect: Dialect,
    results: Sequence[Said],
    tools: Tools,
    *,
    ended: bool,
) -> list[int]:
    """What stands between a sampled reply and the next: what the environment said.

    Of a reply that did not end its turn (`ended=False`: it was cut off) the end comes first.
    """
    given = [as_given(each) for each in results]
    talk = [{"role": "user", "content": "a"}, _reply_to(given, tools), *given]
    made = render(tokenizer, talk, tools or None, dialect.template, asks=True)
    first, end = made.spans[-1]
    turn_ends = [at for at in range(first, end) if made.ids[at] in dialect.stops]
    if not turn_ends:  # A template that does not mark the end of a turn writes it right after.
        follows = set(made.ids[end : end + 1]) & dialect.stops
        return list(made.ids[end + (ended and bool(follows)) :])
    return list(made.ids[turn_ends[-1] + ended :])


def read(
    tokenizer: PreTrainedTokenizerBase,
    dialect: Dialect,
    prompt: Sequence[int],
    ids: Sequence[int],
    tools: Tools,
) -> Message:
    """A sampled reply as a message; see `ludus.policy.reading`."""
    return read_reply(tokenizer, dialect.response, dialect.stops, prompt, ids, tools)


def as_given(message: Said) -> dict[str, Any]:
    """A message as templates take it: a call's arguments are an object, where they are JSON."""
    made = message.model_dump() if isinstance(message, Message) else dict(message)
    if made.get("tool_calls"):
        made["tool_calls"] = [_with_object(call) for call in made["tool_calls"]]
    return made


def _with_object(call: Mapping[str, Any]) -> dict[str, Any]:
    function = call["function"]
    try:
        arguments = json.loads(function["arguments"])
    except (TypeError, ValueError):
        return dict(call)
    if not isinstance(arguments, dict):
        return dict(call)
    return {**call, "function": {**function, "arguments": arguments}}


def _reply_to(given: Sequence[Mapping[str, Any]], tools: Tools) -> dict[str, Any]:
    """A reply that these results could follow: it has called for each that a tool gave."""
    names = [tool.get("function", tool)["name"] for tool in tools or ()]
    calls = [
        {
            "id": each.get("tool_call_id", ""),
            "type": "function",
            "function": {"name": each.get("name") or next(iter(names), "a"), "arguments": {}},
        }
        for each in given
        if each["role"] == "tool"
    ]
    return {"role": "assistant", "content": "a", **({"tool_calls": calls} if calls else {})}
