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

from ludus.curate.lint.rows import Row, Side
from ludus.data.tools import JsonObject
from ludus.errors import TemplateRefused

Write = Callable[[Sequence[JsonObject], Sequence[JsonObject] | None], str]
"""Renders messages and tools."""

_REASONING = ("reasoning_content", "reasoning", "thinking")
_TEXTS = {
    "system": "system-prompt",
    "developer": "system-prompt",
    "user": "user-text",
    "assistant": "assistant-text",
    "tool": "tool-results",
}
_WORD = re.compile(r"<[^<>]*>|(\w+)")


@dataclass(frozen=True, slots=True)
class _Mark:
    kind: str
    word: str


class _Marker:
    """Copies a row with its pieces marked: all of them, or one alone."""

    def __init__(self, only: str | None = None) -> None:
        self._only = only
        self.marks: list[_Mark] = []

    def side(self, side: Side, tools: list[JsonObject] | None) -> tuple[list[JsonObject], Any]:
        messages = [self._message(message) for message in side.messages]
        return messages, [self._named(tool, "tools") for tool in tools] if tools else tools

    def _mark(self, kind: str) -> str:
        """A word for the next piece; empty where this piece is to be left as it is."""
        mark = _Mark(kind, f"zq{len(self.marks)}qz")
        self.marks.append(mark)
        return mark.word if self._only in (None, mark.word) else ""

    def _message(self, message: JsonObject) -> JsonObject:
        marked = dict(message)
        role = message["role"]
        if role in _TEXTS:
            marked["content"] = self._content(message.get("content"), _TEXTS[role])
        thought = [name for name in _REASONING if _has_words(message.get(name))]
        if thought:
            word = self._mark("reasoning")
            marked |= {name: _with_word(message[name], word) for name in thought}
        if message.get("tool_calls"):
            marked["tool_calls"] = [self._call(call) for call in message["tool_calls"]]
        return marked

    def _content(self, content: Any, kind: str) -> Any:
        if _has_words(content):
            return _with_word(content, self._mark(kind))
        if not isinstance(content, list):
            return content
        return [
            {**part, "text": _with_word(part["text"], self._mark(kind))}
            if isinstance(part, dict) and _has_words(part.get("text"))
            else part
            for part in content
        ]

    def _call(self, call: JsonObject) -> JsonObject:
        named = self._named(call, "tool-calls")
        function = dict(named.get("function", named))
        function["arguments"] = _with_entry(function.get("arguments"), self._mark("tool-calls"))
        return {**named, "function": function} if "function" in named else function

    def _named(self, value: JsonObject, kind: str) -> JsonObject:
        function = value.get("function", value)
        marked = {**function, "name": function["name"] + self._mark(kind)}
        return {**value, "function": marked} if "function" in value else marked


def dropped(side: Side, row: Row, write: Write) -> Iterator[tuple[str, str]]:
    """Each kind of piece that does not all come out, and how much of it does not.

    All pieces are marked at once, which is one rendering. A mark can change what a template does
    with the others, so what seems lost is tried again by itself.
    """
    marker = _Marker()
    lost = _lost(marker, side, row, write)
    if lost is None:
        lost = [mark for mark in marker.marks if _lost_alone(mark, side, row, write)]
    all_of = Counter(mark.kind for mark in marker.marks)
    for kind, number in Counter(mark.kind for mark in lost).items():
        first = next(mark for mark in lost if mark.kind == kind)
        if _lost_alone(first, side, row, write):
            words = kind.replace("-", " ")
            yield kind, f"the template leaves out {number} of {all_of[kind]} pieces of {words}"


def _lost(marker: _Marker, side: Side, row: Row, write: Write) -> list[_Mark] | None:
    """The marks that do not come out; None where the template refuses the marked row."""
    try:
        text = write(*marker.side(side, row.tools))
    except TemplateRefused:
        return None
    return [mark for mark in marker.marks if mark.word not in text]


def _lost_alone(mark: _Mark, side: Side, row: Row, write: Write) -> bool:
    lost = _lost(_Marker(only=mark.word), side, row, write)
    return lost is not None and mark in lost


def _has_words(value: Any) -> bool:
    return isinstance(value, str) and bool(value.strip())


def _with_word(text: str, word: str) -> str:
    """The word after the text's last word that stands outside tags.

    Templates look at how a text begins and ends (`</tool_response>`), and some leave out what
    stands before `</think>`.
    """
    found = [match.end() for match in _WORD.finditer(text) if match[1]]
    at = found[-1] if found else len(text)
    return text[:at] + word + text[at:]


def _with_entry(arguments: Any, word: str) -> Any:
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
