"""The proof that a chat template can be trained and played under.

A conversation that has everything in it is rendered. All of it must come out, the assistant's turns
must be marked, and each of them must be read back as it went in. Which templates there are to be
tried is `ludus.policy.dialect`'s business.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ludus.errors import TemplateRefused
from ludus.policy.reading import Reader
from ludus.policy.templates import Rendered, Tools, render, shared

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
_WORDS = "It is there — in row 22."


@dataclass(frozen=True, slots=True)
class Probe:
    """A conversation, and what of it has to be seen in the text."""

    messages: Sequence[Mapping[str, Any]]
    tools: Sequence[Mapping[str, Any]] | None
    seen: tuple[str, ...]


TALK = Probe(
    [
        {"role": "user", "content": "Where is it?"},
        {"role": "assistant", "content": _WORDS},
        {"role": "user", "content": "And now?"},
        {"role": "assistant", "content": _WORDS},
    ],
    None,
    ("Where is it?", "And now?"),
)
PLAY = Probe(
    [
        {"role": "system", "content": "You seek."},
        {"role": "user", "content": "Where is it?"},
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [{"id": "call00001", "type": "function", "function": _CALL}],
        },
        {"role": "tool", "content": "Row 22.", "tool_call_id": "call00001", "name": "find_it"},
        {"role": "assistant", "content": _WORDS},
    ],
    [_TOOL],
    ("You seek.", "Where is it?", "Finds what is sought.", "Row 22."),
)


@dataclass(frozen=True, slots=True)
class Proof:
    """What was found out about a template."""

    response: Mapping[str, Any]
    """The first way of those that were tried that reads its replies."""
    stops: frozenset[int]


def prove(
    tokenizer: PreTrainedTokenizerBase,
    template: str,
    responses: Iterable[Mapping[str, Any]],
    probe: Probe,
) -> Proof | str:
    """The proof, or what the template does wrong."""
    try:
        made = render(tokenizer, probe.messages, probe.tools, template)
    except TemplateRefused:
        return "refuses a conversation with tools" if probe.tools else "refuses a conversation"
    if any(words not in made.text for words in probe.seen):
        return "leaves out tools or results" if probe.tools else "leaves out what was said"
    if not any(made.mask):
        return "does not mark the assistant's tokens ({% generation %})"
    turns = [at for at, each in enumerate(probe.messages) if each["role"] == "assistant"]
    if len(made.spans) != len(turns):
        return "does not mark each turn of the assistant by itself"
    stops = _stops(tokenizer, made)
    asked = [_asked(tokenizer, template, probe.messages[:at], probe.tools, made) for at in turns]
    if probe.tools and any(end < span[0] for end, span in zip(asked, made.spans, strict=True)):
        return "does not write where the assistant is to speak (add_generation_prompt)"
    replies = [
        _Reply(made.ids[: max(begin, first)], made.ids[max(begin, first) : end], probe.messages[at])
        for at, begin, (first, end) in zip(turns, asked, made.spans, strict=True)
    ]
    for response in responses:
        if all(each.is_read(tokenizer, response, stops, probe.tools) for each in replies):
            return Proof(response, stops)
    return "writes replies in a way that cannot be read back"


@dataclass(frozen=True, slots=True)
class _Reply:
    """A turn of the assistant as the model would sample it."""

    prompt: Sequence[int]
    ids: Sequence[int]
    meant: Mapping[str, Any]

    def is_read(
        self,
        tokenizer: PreTrainedTokenizerBase,
        response: Mapping[str, Any],
        stops: frozenset[int],
        tools: Tools,
    ) -> bool:
        found = Reader(tokenizer, response, stops)(self.prompt, self.ids, tools)
        calls = [call.function for call in found.tool_calls or ()]
        wanted = [call["function"] for call in self.meant.get("tool_calls", ())]
        try:
            heard = [{"name": call.name, "arguments": json.loads(call.arguments)} for call in calls]
        except ValueError:
            return False
        return found.content == self.meant["content"] and heard == wanted


def _asked(
    tokenizer: PreTrainedTokenizerBase,
    template: str,
    messages: Sequence[Mapping[str, Any]],
    tools: Tools,
    made: Rendered,
) -> int:
    """Where the model is to speak after these messages, which need not be where marks begin."""
    return shared(render(tokenizer, messages, tools, template, asks=True).ids, made.ids)


def _stops(tokenizer: PreTrainedTokenizerBase, made: Rendered) -> frozenset[int]:
    """What ends the assistant's turns, and what ends everything."""
    added = set(tokenizer.get_added_vocab().values())
    ends = {_last_word(tokenizer, made.ids[first:end]) for first, end in made.spans}
    known = {tokenizer.eos_token_id} - {None}
    return frozenset((ends & added) | known)


def _last_word(tokenizer: PreTrainedTokenizerBase, ids: Sequence[int]) -> int:
    return next((i for i in reversed(ids) if str(tokenizer.decode([i])).strip()), -1)
