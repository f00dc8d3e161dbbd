"""Find out by rendering what a chat template silently drops.

A marker word is inserted into every piece of a row (a system prompt, the name of a call, ...). If
it is missing from the rendered text, the student would never see that piece.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterator

from ludus.data.tool_schema import JsonObject, parse_arguments
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

    Yields nothing if the template refuses the marked row.
    """
    kinds: dict[str, str] = {}  # Of the pieces, by their marker words.
    marked = [_mark_message(message, kinds) for message in messages]
    marked_tools = tools and [_mark_name(tool, "tools", kinds) for tool in tools]
    try:
        text = render_text(marked, marked_tools)
    except TemplateRefused:
        return
    totals = Counter(kinds.values())
    for kind, count in Counter(kinds[word] for word in kinds if word not in text).items():
        name = kind.replace("-", " ")
        yield kind, f"the template drops {count} of {totals[kind]} pieces of {name}"


def _next_word(kind: str, kinds: dict[str, str]) -> str:
    word = f"zq{len(kinds)}qz"
    kinds[word] = kind
    return word


def _mark_message(message: JsonObject, kinds: dict[str, str]) -> JsonObject:
    """Copy a message with a marker word in every piece."""
    marked = dict(message)
    kind, content = _KIND_BY_ROLE.get(message["role"]), message.get("content")
    if kind is not None and isinstance(content, str) and content.strip():
        marked["content"] = _insert_word(content, _next_word(kind, kinds))
    texts = {name: message.get(name) for name in _REASONING_KEYS}
    if texts := {name: text for name, text in texts.items() if isinstance(text, str) and text}:
        word = _next_word("reasoning", kinds)
        marked |= {name: _insert_word(text, word) for name, text in texts.items()}
    calls = []
    for call in message.get("tool_calls") or ():
        call = _mark_name(call, "tool-calls", kinds)
        function, word = dict(call.get("function", call)), _next_word("tool-calls", kinds)
        arguments = function.get("arguments")
        parsed = parse_arguments(arguments) if isinstance(arguments, str) else arguments
        if isinstance(parsed, dict):
            parsed = {**parsed, word: word}
            function["arguments"] = json.dumps(parsed) if isinstance(arguments, str) else parsed
        else:
            function["arguments"] = f"{arguments}{word}" if arguments else {word: word}
        calls.append({**call, "function": function} if "function" in call else function)
    return {**marked, "tool_calls": calls} if calls else marked


def _mark_name(value: JsonObject, kind: str, kinds: dict[str, str]) -> JsonObject:
    """Mark the name of a call or of a tool."""
    function = value.get("function", value)
    marked = {**function, "name": function["name"] + _next_word(kind, kinds)}
    return {**value, "function": marked} if "function" in value else marked


def _insert_word(text: str, word: str) -> str:
    """Insert a word after the last word outside tags.

    Templates test how a text begins and ends (`</tool_response>`), and some drop what precedes
    `</think>`.
    """
    ends = [match.end() for match in _TAG_OR_WORD.finditer(text) if match[1]]
    at = ends[-1] if ends else len(text)
    return text[:at] + word + text[at:]
