"""What a template drops without a word: found by marking every piece of a row and rendering it.

A mark is a word that stands nowhere else, put into one piece: a system prompt, a call's name, a
tool's. Where it does not come out again, the student would never see that piece.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from ludus.curation.lint.rows import Conversation, TrainingRow
from ludus.data.tool_schema import JsonObject
from ludus.errors import TemplateRefused

RenderText = Callable[[Sequence[JsonObject], Sequence[JsonObject] | None], str]
"""Renders messages and tools."""

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
    """Copies a row with its pieces marked: all of them, or one alone."""

    def __init__(self, only: str | None = None) -> None:
        self._only = only
        self.marks: list[_Mark] = []

    def mark_conversation(
        self, side: Conversation, tools: list[JsonObject] | None
    ) -> tuple[list[JsonObject], Any]:
        messages = [self._mark_message(message) for message in side.messages]
        return messages, [self._mark_name(tool, "tools") for tool in tools] if tools else tools

    def _next_word(self, kind: str) -> str:
        """A word for the next piece; empty where this piece is to be left as it is."""
        mark = _Mark(kind, f"zq{len(self.marks)}qz")
        self.marks.append(mark)
        return mark.word if self._only in (None, mark.word) else ""

    def _mark_message(self, message: JsonObject) -> JsonObject:
        marked = dict(message)
        role = message["role"]
        if role in _KIND_BY_ROLE:
            marked["content"] = self._mark_content(message.get("content"), _KIND_BY_ROLE[role])
        thought = [name for name in _REASONING_KEYS if _has_text(message.get(name))]
        if thought:
            word = self._next_word("reasoning")
            marked |= {name: _insert_word(message[name], word) for name in thought}
        if message.get("tool_calls"):
            marked["tool_calls"] = [self._mark_call(call) for call in message["tool_calls"]]
        return marked

    def _mark_content(self, content: Any, kind: str) -> Any:
        if _has_text(content):
            return _insert_word(content, self._next_word(kind))
        if not isinstance(content, list):
            return content
        return [
            {**part, "text": _insert_word(part["text"], self._next_word(kind))}
            if isinstance(part, dict) and _has_text(part.get("text"))
            else part
            for part in content
        ]

    def _mark_call(self, call: JsonObject) -> JsonObject:
        named = self._mark_name(call, "tool-calls")
        function = dict(named.get("function", named))
        function["arguments"] = _insert_entry(
            function.get("arguments"), self._next_word("tool-calls")
        )
        return {**named, "function": function} if "function" in named else function

    def _mark_name(self, value: JsonObject, kind: str) -> JsonObject:
        function = value.get("function", value)
        marked = {**function, "name": function["name"] + self._next_word(kind)}
        return {**value, "function": marked} if "function" in value else marked


def find_dropped_pieces(
    side: Conversation, row: TrainingRow, render_text: RenderText
) -> Iterator[tuple[str, str]]:
    """Each kind of piece that does not all come out, and how much of it does not.

    All pieces are marked at once, which is one rendering. A mark can change what a template does
    with the others, so what seems lost is tried again by itself.
    """
    marker = _Marker()
    lost = _missing_marks(marker, side, row, render_text)
    if lost is None:
        lost = [mark for mark in marker.marks if _is_dropped_alone(mark, side, row, render_text)]
    all_of = Counter(mark.kind for mark in marker.marks)
    for kind, number in Counter(mark.kind for mark in lost).items():
        first = next(mark for mark in lost if mark.kind == kind)
        if _is_dropped_alone(first, side, row, render_text):
            words = kind.replace("-", " ")
            yield kind, f"the template leaves out {number} of {all_of[kind]} pieces of {words}"


def _missing_marks(
    marker: _Marker, side: Conversation, row: TrainingRow, render_text: RenderText
) -> list[_Mark] | None:
    """The marks that do not come out; None where the template refuses the marked row."""
    try:
        text = render_text(*marker.mark_conversation(side, row.tools))
    except TemplateRefused:
        return None
    return [mark for mark in marker.marks if mark.word not in text]


def _is_dropped_alone(
    mark: _Mark, side: Conversation, row: TrainingRow, render_text: RenderText
) -> bool:
    lost = _missing_marks(_Marker(only=mark.word), side, row, render_text)
    return lost is not None and mark in lost


def _has_text(value: Any) -> bool:
    return isinstance(value, str) and bool(value.strip())


def _insert_word(text: str, word: str) -> str:
    """The word after the text's last word that stands outside tags.

    Templates look at how a text begins and ends (`</tool_response>`), and some leave out what
    stands before `</think>`.
    """
    found = [match.end() for match in _TAG_OR_WORD.finditer(text) if match[1]]
    at = found[-1] if found else len(text)
    return text[:at] + word + text[at:]


def _insert_entry(arguments: Any, word: str) -> Any:
    if not word:
        return arguments
    if isinstance(arguments, dict):
        return {**arguments, word: word}
    if isinstance(arguments, str):
        try:
            parsed = json.loads(arguments)
        except ValueError:
            return arguments + word
        return json.dumps({**parsed, word: word}) if isinstance(parsed, dict) else arguments + word
    return {word: word}
