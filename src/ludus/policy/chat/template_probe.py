"""Probe whether a chat template can be used for training and for rollouts.

A probe is a conversation that is rendered. All of its contents must be in the text, the assistant's
turns must be marked, and a response template must parse each turn back into the original message.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ludus.errors import TemplateRefused
from ludus.policy.chat.rendering import RenderedConversation, Tools, render, rendered_prompt_length
from ludus.policy.chat.reply_parser import ReplyParser

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

# Values that templates easily corrupt: numeric strings, non-ASCII letters, quotes, nested objects.
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
    """A conversation, and texts that its rendering must contain."""

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
class ProbeResult:
    """The result of a probe that has passed."""

    response_template: Mapping[str, Any]
    """The first of the tried response templates that parses the replies."""
    stop_token_ids: frozenset[int]


def probe_template(
    tokenizer: PreTrainedTokenizerBase,
    template: str,
    response_templates: Iterable[Mapping[str, Any]],
    probe: Probe,
) -> ProbeResult | str:
    """Check a template; if the probe fails, return what is wrong ("The chat template ...")."""
    try:
        rendered = render(tokenizer, probe.messages, probe.tools, template)
    except TemplateRefused:
        return "refuses a conversation with tools" if probe.tools else "refuses a conversation"
    if any(text not in rendered.text for text in probe.required_texts):
        return "leaves out tools or results" if probe.tools else "leaves out messages"
    if not any(rendered.mask):
        return "does not mark the assistant's tokens ({% generation %})"
    turns = [
        index for index, message in enumerate(probe.messages) if message["role"] == "assistant"
    ]
    if len(rendered.spans) != len(turns):
        return "does not mark each of the assistant's turns separately"
    # The prompt of a reply may end behind the start of the marked span.
    prompts = [
        render(
            tokenizer, probe.messages[:turn], probe.tools, template, add_generation_prompt=True
        ).ids
        for turn in turns
    ]
    prompt_lengths = [rendered_prompt_length(prompt, rendered.ids) for prompt in prompts]
    if probe.tools and any(
        length < start for length, (start, _) in zip(prompt_lengths, rendered.spans, strict=True)
    ):
        return "does not write the start of the assistant's turn (add_generation_prompt)"
    replies = [
        _ExpectedReply(
            rendered.ids[: max(length, start)],
            rendered.ids[max(length, start) : end],
            probe.messages[turn],
        )
        for turn, length, (start, end) in zip(turns, prompt_lengths, rendered.spans, strict=True)
    ]
    stop_token_ids = _probe_stop_ids(tokenizer, rendered)
    for response_template in response_templates:
        parser = ReplyParser(tokenizer, response_template, stop_token_ids)
        if all(reply.is_parsed_by(parser, probe.tools) for reply in replies):
            return ProbeResult(response_template, stop_token_ids)
    return "writes replies in a way that cannot be read back"


@dataclass(frozen=True, slots=True)
class _ExpectedReply:
    """A turn of the assistant in a probe, as the model would sample it."""

    prompt: Sequence[int]
    ids: Sequence[int]
    message: Mapping[str, Any]

    def is_parsed_by(self, parser: ReplyParser, tools: Tools) -> bool:
        """Whether the parser recovers the original message."""
        parsed = parser(self.prompt, self.ids, tools)
        try:
            calls = [
                {"name": call.function.name, "arguments": json.loads(call.function.arguments)}
                for call in parsed.tool_calls or ()
            ]
        except ValueError:
            return False
        expected = [call["function"] for call in self.message.get("tool_calls", ())]
        return parsed.content == self.message["content"] and calls == expected


def _probe_stop_ids(
    tokenizer: PreTrainedTokenizerBase, rendered: RenderedConversation
) -> frozenset[int]:
    """Return the special tokens that end the assistant's turns in a probe, and the EOS token."""
    added = set(tokenizer.get_added_vocab().values())
    last_visible = {
        next(
            (i for i in reversed(rendered.ids[start:end]) if str(tokenizer.decode([i])).strip()), -1
        )
        for start, end in rendered.spans
    }
    return frozenset((last_visible & added) | ({tokenizer.eos_token_id} - {None}))
