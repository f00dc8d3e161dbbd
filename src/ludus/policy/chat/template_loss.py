"""Find out by rendering what a chat template silently drops.

A marker word that occurs nowhere else is inserted into every piece of a row (a system prompt, the
name of a call, a tool's name). A marker that is missing from the rendered text belongs to a piece
that the student would never see.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress

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


def find_dropped_pieces(
    messages: Messages, tools: Tools, render_text: RenderText
) -> Iterator[tuple[str, str]]:
    """Yield each kind of piece that the template drops, with a message.

    All pieces are marked at once, which takes one rendering. A marker can change what a template
    does with other pieces, so what seems to be dropped is confirmed with that marker alone.
    """

    def find_missing(marker: _Marker) -> list[str] | None:
        """The markers that are not rendered; None if the template refuses the marked row."""
        marked = [marker.mark_message(message) for message in messages]
        marked_tools = tools and [marker.mark_name(tool, "tools") for tool in tools]
        try:
            text = render_text(marked, marked_tools)
        except TemplateRefused:
            return None
        return [word for word in marker.kinds if word not in text]

    def is_dropped_alone(word: str) -> bool:
        return word in (find_missing(_Marker(only=word)) or ())

    marker = _Marker()
    missing = find_missing(marker)
    if missing is None:
        missing = list(filter(is_dropped_alone, marker.kinds))
    totals = Counter(marker.kinds.values())
    for kind, count in Counter(marker.kinds[word] for word in missing).items():
        if is_dropped_alone(next(word for word in missing if marker.kinds[word] == kind)):
            name = kind.replace("-", " ")
            yield kind, f"the template drops {count} of {totals[kind]} pieces of {name}"


class _Marker:
    """Copies messages and tools with a marker word in every piece, or in the piece of `only`."""

    def __init__(self, only: str | None = None) -> None:
        self._only = only
        self.kinds: dict[str, str] = {}
        """The kinds of the pieces so far, by their marker words."""

    def _next_word(self, kind: str) -> str:
        """Return the marker of the next piece; empty if that piece is to stay as it is."""
        word = f"zq{len(self.kinds)}qz"
        self.kinds[word] = kind
        return word if self._only in (None, word) else ""

    def mark_message(self, message: JsonObject) -> JsonObject:
        marked = dict(message)
        kind, content = _KIND_BY_ROLE.get(message["role"]), message.get("content")
        if kind is not None and isinstance(content, str) and content.strip():
            marked["content"] = _insert_word(content, self._next_word(kind))
        elif kind is not None and isinstance(content, list):
            marked["content"] = [
                {**part, "text": _insert_word(part["text"], self._next_word(kind))}
                if isinstance(part, dict) and _is_text(part.get("text"))
                else part
                for part in content
            ]
        if reasoning_keys := [name for name in _REASONING_KEYS if _is_text(message.get(name))]:
            word = self._next_word("reasoning")
            marked |= {name: _insert_word(message[name], word) for name in reasoning_keys}
        if message.get("tool_calls"):
            marked["tool_calls"] = list(map(self._mark_call, message["tool_calls"]))
        return marked

    def _mark_call(self, call: JsonObject) -> JsonObject:
        call = self.mark_name(call, "tool-calls")
        function = dict(call.get("function", call))
        word, arguments = self._next_word("tool-calls"), function.get("arguments")
        parsed = arguments
        if isinstance(arguments, str):
            with suppress(ValueError, RecursionError):
                parsed = json.loads(arguments)
        if word and isinstance(parsed, dict):
            marked = {**parsed, word: word}
            function["arguments"] = json.dumps(marked) if isinstance(arguments, str) else marked
        elif word:
            function["arguments"] = f"{arguments}{word}" if arguments else {word: word}
        return {**call, "function": function} if "function" in call else function

    def mark_name(self, value: JsonObject, kind: str) -> JsonObject:
        """Mark the name of a call or of a tool."""
        function = value.get("function", value)
        marked = {**function, "name": function["name"] + self._next_word(kind)}
        return {**value, "function": marked} if "function" in value else marked


def _is_text(value: object) -> bool:
    return isinstance(value, str) and bool(value.strip())


def _insert_word(text: str, word: str) -> str:
    """Insert a word after the last word outside tags.

    Templates test how a text begins and ends (`</tool_response>`), and some drop what precedes
    `</think>`.
    """
    ends = [match.end() for match in _TAG_OR_WORD.finditer(text) if match[1]]
    at = ends[-1] if ends else len(text)
    return text[:at] + word + text[at:]
