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
from ludus.errors import AgentError
from ludus.policy.chat.chat_format import ChatFormat
from ludus.policy.chat.rendering import RenderedConversation, Tools, render

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

MessageLike = Message | Mapping[str, Any]


def initial_prompt_ids(
    tokenizer: PreTrainedTokenizerBase,
    chat_format: ChatFormat,
    messages: Sequence[MessageLike],
    tools: Tools,
) -> list[int]:
    """The prompt, up to where the model's reply begins."""
    given = [to_template_message(each) for each in messages]
    return list(
        render(
            tokenizer, given, tools or None, chat_format.template, add_generation_prompt=True
        ).ids
    )


def continuation_ids(
    tokenizer: PreTrainedTokenizerBase,
    chat_format: ChatFormat,
    results: Sequence[MessageLike],
    tools: Tools,
    *,
    turn_ended: bool,
    reply: MessageLike | None = None,
) -> list[int]:
    """What stands between a sampled reply and the next: what the environment said.

    Of a reply that did not end its turn (`ended=False`: it was cut off) the end comes first. Some
    templates write the name of the tool beside its result: it is that of the call in `reply`.
    """
    given = [to_template_message(each) for each in results]
    called = _matching_calls(given, to_template_message(reply) if reply is not None else {}, tools)
    turn = {"role": "assistant", "content": "a", **({"tool_calls": called} if called else {})}
    talk: list[dict[str, Any]] = [{"role": "user", "content": "a"}, turn, *given]
    made = render(tokenizer, talk, tools or None, chat_format.template, add_generation_prompt=True)
    end = _turn_end_index(tokenizer, chat_format, made)
    return list(made.ids[made.spans[-1][1] if end is None else end + turn_ended :])


def to_template_message(message: MessageLike) -> dict[str, Any]:
    """A message as templates take it: words as a string, a call's arguments as an object, where
    they are JSON."""
    made = message.model_dump() if isinstance(message, Message) else dict(message)
    if "content" in made:
        made["content"] = _content_text(made["content"])
    if made.get("tool_calls"):
        made["tool_calls"] = [_parse_arguments(call) for call in made["tool_calls"]]
    return made


def _parse_arguments(call: Mapping[str, Any]) -> dict[str, Any]:
    function = call["function"]
    try:
        arguments = json.loads(function["arguments"])
    except (TypeError, ValueError):
        return dict(call)
    if not isinstance(arguments, dict):
        return dict(call)
    return {**call, "function": {**function, "arguments": arguments}}


def _content_text(content: Any) -> Any:
    """Many templates take only strings, and leave out all else without a word."""
    if content is None or isinstance(content, str):
        return content
    if any(part["type"] != "text" for part in content):
        # A model that sees is given a mark in the place of each: see `ludus.policy.vision`.
        raise AgentError(
            "The environment shows a picture, and this model reads only text. Play it with a "
            "model that sees, or have the environment write."
        )
    return "\n".join(part["text"] for part in content)


def _matching_calls(
    given: Sequence[Mapping[str, Any]], reply: Mapping[str, Any], tools: Tools
) -> list[dict[str, Any]]:
    """The calls that these results could follow: those of the reply, or else one for each."""
    results = [each for each in given if each["role"] == "tool"]
    if results and reply.get("tool_calls"):
        return [_build_call(call["id"], call["function"]["name"]) for call in reply["tool_calls"]]
    first = next((tool.get("function", tool)["name"] for tool in tools or ()), "a")
    return [
        _build_call(each.get("tool_call_id", ""), each.get("name") or first) for each in results
    ]


def _build_call(identity: str, name: str) -> dict[str, Any]:
    function = {"name": name, "arguments": dict[str, Any]()}
    return {"id": identity, "type": "function", "function": function}


def _turn_end_index(
    tokenizer: PreTrainedTokenizerBase, dialect: ChatFormat, made: RenderedConversation
) -> int | None:
    """Where the assistant's turn ends; None where nothing is written there."""
    first, end = made.spans[-1]
    marked = [at for at in range(first, end) if made.ids[at] in dialect.stop_token_ids]
    if marked:
        return marked[-1]
    # A template that does not mark the end of a turn writes it right after.
    if end < len(made.ids) and made.ids[end] in dialect.stop_token_ids:
        return end
    # What ends a turn in the midst of a conversation need not be what ends a sampled one.
    last = tokenizer.added_tokens_decoder.get(made.ids[end - 1])
    return end - 1 if last is not None and last.special else None
