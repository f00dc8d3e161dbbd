"""Find out by rendering what a chat template silently drops.

A marker word that occurs nowhere else is inserted into every piece of a row (a system prompt, the
name of a call, a tool's name). A marker that is missing from the rendered text belongs to a piece
that the student would never see.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from ludus.data.tool_schema import JsonObject
from ludus.errors import TemplateRefused
from ludus.policy.chat.encoding import Messages, Tools

RenderText = Callable[[Messages, Tools], str]

_REASONING_KEYS = ("reasoning_content", "reasoning", "thinking")
_KIND_BY_ROLE = {
    "system": "system-prompt",
    "developer": "system-prompt",
    "user": "user-text",
    "assistant": "assistant-text",
    "tool": "tool-results",
}
_TAG_OR_WORD = re.compile(r"<[^<>]*>|(\w+)")


@dataclass(frozen=True, slots=True)
class _Mark:
    kind: str
    word: str


class _Marker:
    """Copies a conversation with a marker word in every piece, or in the piece of `only`."""

    def __init__(self, only: str | None = None) -> None:
        self._only = only
        self.marks: list[_Mark] = []

    def mark_conversation(self, messages: Messages, tools: Tools) -> tuple[list[JsonObject], Any]:
        marked = [self._mark_message(message) for message in messages]
        return marked, [self._mark_name(tool, "tools") for tool in tools] if tools else tools

    def _next_word(self, kind: str) -> str:
        """Return the marker of the next piece; empty if that piece is to stay as it is."""
        mark = _Mark(kind, f"zq{len(self.marks)}qz")
        self.marks.append(mark)
        return mark.word if self._only in (None, mark.word) else ""

    def _mark_message(self, message: Mapping[str, Any]) -> JsonObject:
        marked = dict(message)
        kind = _KIND_BY_ROLE.get(message["role"])
        if kind is not None:
            content: Any = message.get("content")
            if _can_mark(content):
                content = _insert_word(content, self._next_word(kind))
            elif isinstance(content, list):
                content = [
                    {**part, "text": _insert_word(part["text"], self._next_word(kind))}
                    if isinstance(part, dict) and _can_mark(part.get("text"))
                    else part
                    for part in content
                ]
            marked["content"] = content
        reasoning_keys = [name for name in _REASONING_KEYS if _can_mark(message.get(name))]
        if reasoning_keys:
            word = self._next_word("reasoning")
            marked |= {name: _insert_word(message[name], word) for name in reasoning_keys}
        if message.get("tool_calls"):
            marked["tool_calls"] = []
            for value in message["tool_calls"]:
                call = self._mark_name(value, "tool-calls")
                function = dict(call.get("function", call))
                word = self._next_word("tool-calls")
                function["arguments"] = _mark_arguments(function.get("arguments"), word)
                call = {**call, "function": function} if "function" in call else function
                marked["tool_calls"].append(call)
        return marked

    def _mark_name(self, value: Mapping[str, Any], kind: str) -> JsonObject:
        function = value.get("function", value)
        marked = {**function, "name": function["name"] + self._next_word(kind)}
        return {**value, "function": marked} if "function" in value else marked


def find_dropped_pieces(
    messages: Messages, tools: Tools, render_text: RenderText
) -> Iterator[tuple[str, str]]:
    """Yield each kind of piece that the template drops, with a message.

    All pieces are marked at once, which takes one rendering. A marker can change what a template
    does with other pieces, so what seems to be dropped is confirmed with that marker alone.
    """
    marker = _Marker()
    missing = _missing_marks(marker, messages, tools, render_text)

    def is_dropped_alone(mark: _Mark) -> bool:
        alone = _missing_marks(_Marker(only=mark.word), messages, tools, render_text)
        return alone is not None and mark in alone

    if missing is None:
        missing = [mark for mark in marker.marks if is_dropped_alone(mark)]
    totals = Counter(mark.kind for mark in marker.marks)
    for kind, count in Counter(mark.kind for mark in missing).items():
        first = next(mark for mark in missing if mark.kind == kind)
        if is_dropped_alone(first):
            name = kind.replace("-", " ")
            yield kind, f"the template drops {count} of {totals[kind]} pieces of {name}"


def _missing_marks(
    marker: _Marker,
    messages: Messages,
    tools: Tools,
    render_text: RenderText,
) -> list[_Mark] | None:
    """Return the marks that are not rendered; None if the template refuses the marked row."""
    text = _try_render(*marker.mark_conversation(messages, tools), render_text)
    return None if text is None else [mark for mark in marker.marks if mark.word not in text]


def _can_mark(value: Any) -> bool:
    """Whether a value is text into which a marker word can be inserted."""
    return isinstance(value, str) and bool(value.strip())


def _insert_word(text: str, word: str) -> str:
    """Insert a word after the last word outside tags.

    Templates test how a text begins and ends (`</tool_response>`), and some drop what precedes
    `</think>`.
    """
    ends = [match.end() for match in _TAG_OR_WORD.finditer(text) if match[1]]
    at = ends[-1] if ends else len(text)
    return text[:at] + word + text[at:]


def _mark_arguments(arguments: Any, word: str) -> Any:
    """Add a marker word to the arguments of a call, as an argument of its own."""
    if not word:
        return arguments
    if isinstance(arguments, dict):
        return {**arguments, word: word}
    if isinstance(arguments, str):
        with suppress(ValueError, RecursionError):
            if isinstance(parsed := json.loads(arguments), dict):
                return json.dumps({**parsed, word: word})
        return arguments + word
    return {word: word}


def _try_render(messages: Messages, tools: Tools, render_text: RenderText) -> str | None:
    """Render messages; None if the template refuses them."""
    try:
        return render_text(messages, tools)
    except TemplateRefused:
        return None
