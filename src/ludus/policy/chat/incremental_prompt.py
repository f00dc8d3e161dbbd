"""Token ids of a conversation during a rollout: the first prompt, and what follows each reply.

Sampled ids are never decoded and tokenized again. A chat template renders whole conversations, so
the ids between two replies are taken from a short conversation that contains only the new messages.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ludus.policy.chat.chat_format import ChatFormat
from ludus.policy.chat.encoding import Tools
from ludus.policy.chat.rendering import (
    MessageLike,
    RenderedConversation,
    render,
    to_template_message,
)

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
    converted = [to_template_message(each) for each in results]
    calls = _matching_calls(converted, {} if reply is None else to_template_message(reply), tools)
    turn = {"role": "assistant", "content": "a", **({"tool_calls": calls} if calls else {})}
    messages: list[dict[str, Any]] = [{"role": "user", "content": "a"}, turn, *converted]
    rendered = render(
        tokenizer, messages, tools or None, chat_format.template, add_generation_prompt=True
    )
    start = _incremental_prompt_start(tokenizer, chat_format, rendered, turn_ended=turn_ended)
    return list(rendered.ids[start:])


def _matching_calls(
    messages: Sequence[Mapping[str, Any]], reply: Mapping[str, Any], tools: Tools
) -> list[dict[str, Any]]:
    """Build the calls that precede the tool results: those of the reply, or one per result."""
    results = [message for message in messages if message["role"] == "tool"]
    if results and reply.get("tool_calls"):
        return [
            _placeholder_call(call["id"], call["function"]["name"]) for call in reply["tool_calls"]
        ]
    default = next((tool.get("function", tool)["name"] for tool in tools or ()), "a")
    return [
        _placeholder_call(result.get("tool_call_id", ""), result.get("name") or default)
        for result in results
    ]


def _placeholder_call(call_id: str, name: str) -> dict[str, Any]:
    """Build a call without arguments, for the conversation that the new messages continue."""
    function = {"name": name, "arguments": dict[str, Any]()}
    return {"id": call_id, "type": "function", "function": function}


def _incremental_prompt_start(
    tokenizer: PreTrainedTokenizerBase,
    chat_format: ChatFormat,
    rendered: RenderedConversation,
    *,
    turn_ended: bool,
) -> int:
    """Return where the incremental prompt begins: at the end of the last assistant turn.

    If the reply has ended its turn, the token that ends it is not part of the prompt.
    """
    ids, (start, end) = rendered.ids, rendered.spans[-1]
    stops = [index for index in range(start, end) if ids[index] in chat_format.stop_token_ids]
    if stops:
        return stops[-1] + turn_ended
    # Some templates write the end of the turn directly behind the marked span.
    if end < len(ids) and ids[end] in chat_format.stop_token_ids:
        return end + turn_ended
    # The token that ends a turn within a conversation may differ from the sampled stop token.
    last = tokenizer.added_tokens_decoder.get(ids[end - 1])
    return end - 1 + turn_ended if last is not None and last.special else end
