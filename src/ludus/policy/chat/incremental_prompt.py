"""Token ids of a conversation during a rollout: the first prompt, and what follows each reply.

Sampled ids are never decoded and tokenized again. A chat template renders whole conversations, so
the ids between two replies are taken from a short conversation that contains only the new messages.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from ludus.data.tool_schema import JsonObject
from ludus.policy.chat.chat_format import ChatFormat
from ludus.policy.chat.encoding import ContentGuard, Tools, content_guard, encode_with_cache
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
    if len(new) == 1 and isinstance(content := new[0].get("content"), str):
        names = tuple(call["function"]["name"] for call in calls)
        frame = _find_frame(tokenizer, chat_format, new[0], names, tools)
        if frame is not None and frame.fits(content):
            text = frame.before + content + frame.after
            return encode_with_cache(tokenizer, [text])[0].ids[turn_ended:]
    ids, first = _render_results(tokenizer, chat_format, new, calls, tools)[:2]
    return list(ids[first + turn_ended :]) if first is not None else list(ids)


def _render_results(
    tokenizer: PreTrainedTokenizerBase,
    chat_format: ChatFormat,
    new: Sequence[JsonObject],
    calls: Sequence[JsonObject],
    tools: Tools,
) -> tuple[Sequence[int], int | None, str]:
    """Render new messages behind a reply with these calls.

    Returns the ids, the index of the token that ends the reply's turn, and the text from there on.
    If no token ends a turn, the ids are those behind the turn.
    """
    turn = {"role": "assistant", "content": "a", **({"tool_calls": calls} if calls else {})}
    messages: list[JsonObject] = [{"role": "user", "content": "a"}, turn, *new]
    rendered = render(
        tokenizer, messages, tools or None, chat_format.template, add_generation_prompt=True
    )
    ids, (start, end) = rendered.ids, rendered.spans[-1]
    stops = [at for at in range(start, end) if ids[at] in chat_format.stop_token_ids]
    if not stops and end < len(ids) and ids[end] in chat_format.stop_token_ids:
        stops = [end]  # Some templates write the end of the turn behind the marked span.
    if not stops:
        # The token that ends a turn within a conversation may differ from the sampled stop token.
        last = tokenizer.added_tokens_decoder.get(ids[end - 1])
        if last is None or not last.special:
            return ids[end:], None, ""
        stops = [end - 1]
    return ids, stops[-1], rendered.text[rendered.starts[stops[-1]] :]


@dataclass(frozen=True, slots=True)
class _Frame:
    """What a template writes around the content of a message; rendering takes much longer."""

    before: str
    """Begins with the token that ends the reply's turn."""
    after: str
    literals: tuple[str, ...]
    """Texts that the template may look for in the content."""
    guard: ContentGuard

    def fits(self, content: str) -> bool:
        """Whether the template writes this content as it is."""
        return (
            content != ""
            and content == content.strip()
            and not any(literal in content for literal in self.literals)
            and not self.guard.mark([{"role": "tool", "content": content}])[2]
        )


_FRAMES: WeakKeyDictionary[PreTrainedTokenizerBase, dict[object, _Frame | None]] = (
    WeakKeyDictionary()
)
_SENTINEL, _SENTINEL_ID = "ludus7f3a9c", "call_7f3a9c"
_PROBES = (
    '{"a": [1, "b"], "c": null}',
    "x: \\n\n  'y' & \"z\"\n\N{SNOWMAN}",
    "[1, 2]",
    "0",
    "a" * 5000,
)
"""Contents that a template might change."""
_TEMPLATE_TAG = re.compile(r"\{[{%](.*?)[%}]\}", re.DOTALL)
_STRING_LITERAL = re.compile(r"'([^']{3,})'|\"([^\"]{3,})\"")


def _find_frame(
    tokenizer: PreTrainedTokenizerBase,
    chat_format: ChatFormat,
    message: JsonObject,
    names: tuple[str, ...],
    tools: Tools,
) -> _Frame | None:
    """The frame of messages like this one; None if the template changes their content."""
    frames = _FRAMES.setdefault(tokenizer, {})
    fields = tuple((key, message[key]) for key in sorted(message) if key in ("role", "name"))
    others = message.keys() - {"role", "name", "content", "tool_call_id"}
    if any(message[key] is not None for key in others):
        return None
    tool_names = tuple(tool.get("function", tool)["name"] for tool in tools or ())
    key = (chat_format.template, len(tokenizer), fields, names, tool_names)
    if key not in frames:
        frames[key] = _build_frame(tokenizer, chat_format, message, names, tools)
    return frames[key]


def _build_frame(
    tokenizer: PreTrainedTokenizerBase,
    chat_format: ChatFormat,
    message: JsonObject,
    names: tuple[str, ...],
    tools: Tools,
) -> _Frame | None:
    def render_content(content: str, call_id: str) -> tuple[Sequence[int], str]:
        calls = [
            {"id": call_id, "type": "function", "function": {"name": name, "arguments": {}}}
            for name in names
        ]
        shown = {**message, "content": content, "tool_call_id": call_id}
        ids, first, text = _render_results(tokenizer, chat_format, [shown], calls, tools)
        return ([] if first is None else ids[first:]), text

    _, text = render_content(_SENTINEL, "call_1_0")
    before, found, after = text.partition(_SENTINEL)
    if not found or _SENTINEL in after:
        return None
    for probe in _PROBES:
        ids, text = render_content(probe, _SENTINEL_ID)
        whole = before + probe + after
        if text != whole or encode_with_cache(tokenizer, [whole])[0].ids != list(ids):
            return None
    source = tokenizer.get_chat_template(chat_format.template, tools)
    literals = {
        single or double
        for tag in _TEMPLATE_TAG.findall(source)
        for single, double in _STRING_LITERAL.findall(tag)
    }
    looked_for = tuple(sorted(each for each in literals if not each.isidentifier()))
    return _Frame(before, after, looked_for, content_guard(tokenizer, source))


def _matching_calls(
    messages: Sequence[JsonObject], reply: JsonObject, tools: Tools
) -> list[JsonObject]:
    """Build the calls that precede the tool results: the reply's calls, or one per result."""
    results = [message for message in messages if message["role"] == "tool"]
    default = next((tool.get("function", tool)["name"] for tool in tools or ()), "a")
    named = [(each.get("tool_call_id", ""), each.get("name") or default) for each in results]
    if results and reply.get("tool_calls"):
        named = [(call["id"], call["function"]["name"]) for call in reply["tool_calls"]]
    return [
        {"id": call_id, "type": "function", "function": {"name": name, "arguments": {}}}
        for call_id, name in named
    ]
