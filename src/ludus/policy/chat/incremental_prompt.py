"""Token ids of a conversation during a rollout: the first prompt, and what follows each reply.

Sampled ids are never decoded and tokenized again. A chat template renders whole conversations, so
the ids between two replies are taken from a short conversation that contains only the new messages.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ludus.data.tool_schema import JsonObject
from ludus.policy.chat.chat_format import ChatFormat
from ludus.policy.chat.encoding import Tools
from ludus.policy.chat.rendering import MessageLike, render, to_template_message

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def initial_prompt_ids(
    tokenizer: PreTrainedTokenizerBase,
    chat_format: ChatFormat,
    messages: Sequence[MessageLike],
    tools: Tools,
) -> list[int]:
    """Return the ids of the first prompt, up to the start of the model's reply."""
    template, converted = chat_format.template, [to_template_message(each) for each in messages]
    rendered = render(tokenizer, converted, tools or None, template, add_generation_prompt=True)
    return list(rendered.ids)


def continuation_ids(
    tokenizer: PreTrainedTokenizerBase,
    chat_format: ChatFormat,
    results: Sequence[MessageLike],
    tools: Tools,
    *,
    turn_ended: bool,
    reply: MessageLike | None = None,
) -> list[int]:
    """Return the ids between a sampled reply and the next one: the environment's messages.

    Args:
        turn_ended: Whether the reply ended with a stop token. If it was cut off, the ids begin with
            the end of its turn.
        reply: The sampled reply. Some templates write the name of the called tool beside its
            result.
    """
    new = [to_template_message(each) for each in results]
    calls = _matching_calls(new, {} if reply is None else to_template_message(reply), tools)
    turn = {"role": "assistant", "content": "a", **({"tool_calls": calls} if calls else {})}
    messages: list[JsonObject] = [{"role": "user", "content": "a"}, turn, *new]
    rendered = render(
        tokenizer, messages, tools or None, chat_format.template, add_generation_prompt=True
    )
    # The ids begin at the end of the assistant's turn. If the reply has ended its turn, the token
    # that ends it is not one of them.
    ids, (start, end) = rendered.ids, rendered.spans[-1]
    stops = [at for at in range(start, end) if ids[at] in chat_format.stop_token_ids]
    if not stops and end < len(ids) and ids[end] in chat_format.stop_token_ids:
        stops = [end]  # Some templates write the end of the turn behind the marked span.
    if not stops:
        # The token that ends a turn within a conversation may differ from the sampled stop token.
        last = tokenizer.added_tokens_decoder.get(ids[end - 1])
        if last is None or not last.special:
            return list(ids[end:])
        stops = [end - 1]
    return list(ids[stops[-1] + turn_ended :])


def _matching_calls(
    messages: Sequence[JsonObject], reply: JsonObject, tools: Tools
) -> list[JsonObject]:
    """Build the calls that precede the tool results: those of the reply, or one per result."""
    results = [message for message in messages if message["role"] == "tool"]
    default = next((tool.get("function", tool)["name"] for tool in tools or ()), "a")
    named = [(each.get("tool_call_id", ""), each.get("name") or default) for each in results]
    if results and reply.get("tool_calls"):
        named = [(call["id"], call["function"]["name"]) for call in reply["tool_calls"]]
    return [
        {"id": call_id, "type": "function", "function": {"name": name, "arguments": {}}}
        for call_id, name in named
    ]
