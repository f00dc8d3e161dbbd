"""The proof that a chat template can be trained and played under.

A conversation that has everything in it is rendered. All of it must come out, the assistant's turns
must be marked, and each of them must be read back as it went in. Which templates there are to be
tried is `ludus.policy.chat.chat_format`'s business.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ludus.errors import TemplateRefused
from ludus.policy.chat.rendering import RenderedConversation, Tools, common_prefix_length, render
from ludus.policy.chat.reply_parser import ReplyParser

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

# What is easily lost: digits that are a string, letters beyond ASCII, quotes, depth.
_ARGUMENTS = {
    "word": "naïve „Straße“",
    "code": "0042",
    "count": 17,
    "share": 0.25,
    "where": {"rows": [1, 22], "deep": {"key": "a, b"}},
}
_TYPES = {"word": "string", "code": "string", "count": "integer", "share": "number"}
_TOOL = {
    "type": "function",
    "function": {
        "name": "find_it",
        "description": "Finds what is sought.",
        "parameters": {
            "type": "object",
            "properties": {
                **{name: {"type": kind} for name, kind in _TYPES.items()},
                "where": {"type": "object"},
            },
        },
    },
}
_CALL = {"name": "find_it", "arguments": _ARGUMENTS}
_REPLY_TEXT = "It is there — in row 22."


@dataclass(frozen=True, slots=True)
class Probe:
    """A conversation, and what of it has to be seen in the text."""

    messages: Sequence[Mapping[str, Any]]
    tools: Sequence[Mapping[str, Any]] | None
    required_texts: tuple[str, ...]


CHAT_PROBE = Probe(
    [
        {"role": "user", "content": "Where is it?"},
        {"role": "assistant", "content": _REPLY_TEXT},
        {"role": "user", "content": "And now?"},
        {"role": "assistant", "content": _REPLY_TEXT},
    ],
    None,
    ("Where is it?", "And now?"),
)
TOOL_PROBE = Probe(
    [
        {"role": "system", "content": "You seek."},
        {"role": "user", "content": "Where is it?"},
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [{"id": "call00001", "type": "function", "function": _CALL}],
        },
        {"role": "tool", "content": "Row 22.", "tool_call_id": "call00001", "name": "find_it"},
        {"role": "assistant", "content": _REPLY_TEXT},
    ],
    [_TOOL],
    ("You seek.", "Where is it?", "Finds what is sought.", "Row 22."),
)


@dataclass(frozen=True, slots=True)
class TemplateCheck:
    """What was found out about a template."""

    response_template: Mapping[str, Any]
    """The first way of those that were tried that reads its replies."""
    stop_token_ids: frozenset[int]


def check_template(
    tokenizer: PreTrainedTokenizerBase,
    template: str,
    responses: Iterable[Mapping[str, Any]],
    probe: Probe,
) -> TemplateCheck | str:
    """The proof, or what the template does wrong."""
    try:
        made = render(tokenizer, probe.messages, probe.tools, template)
    except TemplateRefused:
        return "refuses a conversation with tools" if probe.tools else "refuses a conversation"
    if any(words not in made.text for words in probe.required_texts):
        return "leaves out tools or results" if probe.tools else "leaves out what was said"
    if not any(made.mask):
        return "does not mark the assistant's tokens ({% generation %})"
    turns = [at for at, each in enumerate(probe.messages) if each["role"] == "assistant"]
    if len(made.spans) != len(turns):
        return "does not mark each turn of the assistant by itself"
    stops = _stop_token_ids(tokenizer, made)
    asked = [
        _reply_start(tokenizer, template, probe.messages[:at], probe.tools, made) for at in turns
    ]
    if probe.tools and any(end < span[0] for end, span in zip(asked, made.spans, strict=True)):
        return "does not write where the assistant is to speak (add_generation_prompt)"
    replies = [
        _ExpectedReply(
            made.ids[: max(begin, first)], made.ids[max(begin, first) : end], probe.messages[at]
        )
        for at, begin, (first, end) in zip(turns, asked, made.spans, strict=True)
    ]
    for response in responses:
        if all(each.round_trips(tokenizer, response, stops, probe.tools) for each in replies):
            return TemplateCheck(response, stops)
    return "writes replies in a way that cannot be read back"


@dataclass(frozen=True, slots=True)
class _ExpectedReply:
    """A turn of the assistant as the model would sample it."""

    prompt: Sequence[int]
    ids: Sequence[int]
    message: Mapping[str, Any]

    def round_trips(
        self,
        tokenizer: PreTrainedTokenizerBase,
        response: Mapping[str, Any],
        stops: frozenset[int],
        tools: Tools,
    ) -> bool:
        found = ReplyParser(tokenizer, response, stops)(self.prompt, self.ids, tools)
        calls = [call.function for call in found.tool_calls or ()]
        wanted = [call["function"] for call in self.message.get("tool_calls", ())]
        try:
            heard = [{"name": call.name, "arguments": json.loads(call.arguments)} for call in calls]
        except ValueError:
            return False
        return found.content == self.message["content"] and heard == wanted


def _reply_start(
    tokenizer: PreTrainedTokenizerBase,
    template: str,
    messages: Sequence[Mapping[str, Any]],
    tools: Tools,
    made: RenderedConversation,
) -> int:
    """Where the model is to speak after these messages, which need not be where marks begin."""
    return common_prefix_length(
        render(tokenizer, messages, tools, template, add_generation_prompt=True).ids, made.ids
    )


def _stop_token_ids(
    tokenizer: PreTrainedTokenizerBase, made: RenderedConversation
) -> frozenset[int]:
    """What ends the assistant's turns, and what ends everything."""
    added = set(tokenizer.get_added_vocab().values())
    ends = {_last_visible_token(tokenizer, made.ids[first:end]) for first, end in made.spans}
    known = {tokenizer.eos_token_id} - {None}
    return frozenset((ends & added) | known)


def _last_visible_token(tokenizer: PreTrainedTokenizerBase, ids: Sequence[int]) -> int:
    return next((i for i in reversed(ids) if str(tokenizer.decode([i])).strip()), -1)
