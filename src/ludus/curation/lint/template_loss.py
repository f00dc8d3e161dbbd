"""Find out by rendering what a chat template silently drops or garbles.

Text: a marker word that occurs nowhere else is inserted into every piece of a row (a system prompt,
the name of a call, a tool's name). A marker that is missing from the rendered text belongs to a
piece that the student would never see.

Images and lists of parts: images leave no text to search for, so each is removed instead; if the
rendered text stays the same, the template ignores it.

Leading whitespace: at inference a reply follows the tokens of the prompt. In a row both are
tokenized together, and a newline at the beginning of the reply may merge with the newline at the
end of the prompt. The student is then trained on a prompt that never occurs at inference.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from ludus.curation.lint.lint_rows import Conversation, TrainingRow
from ludus.data.tool_schema import JsonObject
from ludus.errors import TemplateRefused

RenderText = Callable[[Sequence[JsonObject], Sequence[JsonObject] | None], str]
"""Renders messages and tools."""
TokenizeMessages = Callable[
    [Sequence[JsonObject], Sequence[JsonObject] | None, bool], Sequence[int]
]
"""Tokenizes messages and tools; the last argument is `add_generation_prompt`."""

_REASONING_KEYS = ("reasoning_content", "reasoning", "thinking")
_KIND_BY_ROLE = {
    "system": "system-prompt",
    "developer": "system-prompt",
    "user": "user-text",
    "assistant": "assistant-text",
    "tool": "tool-results",
}
_TAG_OR_WORD = re.compile(r"<[^<>]*>|(\w+)")
_PART_MARK = "zqpartqz"
_IMAGE_TYPES = ("image", "image_url", "input_image")


@dataclass(frozen=True, slots=True)
class _Mark:
    kind: str
    word: str


class _Marker:
    """Copies a conversation with a marker word in every piece, or in the piece of `only`."""

    def __init__(self, only: str | None = None) -> None:
        self._only = only
        self.marks: list[_Mark] = []

    def mark_conversation(
        self, conversation: Conversation, tools: list[JsonObject] | None
    ) -> tuple[list[JsonObject], Any]:
        messages = [self._mark_message(message) for message in conversation.messages]
        return messages, [self._mark_name(tool, "tools") for tool in tools] if tools else tools

    def _next_word(self, kind: str) -> str:
        """Return the marker of the next piece; empty if that piece is to stay as it is."""
        mark = _Mark(kind, f"zq{len(self.marks)}qz")
        self.marks.append(mark)
        return mark.word if self._only in (None, mark.word) else ""

    def _mark_message(self, message: JsonObject) -> JsonObject:
        marked = dict(message)
        kind = _KIND_BY_ROLE.get(message["role"])
        if kind is not None:
            content: Any = message.get("content")
            if _has_text(content):
                content = _insert_word(content, self._next_word(kind))
            elif isinstance(content, list):
                content = [
                    {**part, "text": _insert_word(part["text"], self._next_word(kind))}
                    if isinstance(part, dict) and _has_text(part.get("text"))
                    else part
                    for part in content
                ]
            marked["content"] = content
        reasoning_keys = [name for name in _REASONING_KEYS if _has_text(message.get(name))]
        if reasoning_keys:
            word = self._next_word("reasoning")
            marked |= {name: _insert_word(message[name], word) for name in reasoning_keys}
        if message.get("tool_calls"):
            marked["tool_calls"] = []
            for value in message["tool_calls"]:
                call = self._mark_name(value, "tool-calls")
                function = dict(call.get("function", call))
                word = self._next_word("tool-calls")
                function["arguments"] = _insert_entry(function.get("arguments"), word)
                call = {**call, "function": function} if "function" in call else function
                marked["tool_calls"].append(call)
        return marked

    def _mark_name(self, value: JsonObject, kind: str) -> JsonObject:
        function = value.get("function", value)
        marked = {**function, "name": function["name"] + self._next_word(kind)}
        return {**value, "function": marked} if "function" in value else marked


def find_dropped_pieces(
    conversation: Conversation, row: TrainingRow, render_text: RenderText
) -> Iterator[tuple[str, str]]:
    """Yield each kind of piece that the template drops, with a message.

    All pieces are marked at once, which takes one rendering. A marker can change what a template
    does with other pieces, so what seems to be dropped is confirmed with that marker alone.
    """
    marker = _Marker()
    missing = _missing_marks(marker, conversation, row, render_text)

    def is_dropped_alone(mark: _Mark) -> bool:
        alone = _missing_marks(_Marker(only=mark.word), conversation, row, render_text)
        return alone is not None and mark in alone

    if missing is None:
        missing = [mark for mark in marker.marks if is_dropped_alone(mark)]
    totals = Counter(mark.kind for mark in marker.marks)
    for kind, count in Counter(mark.kind for mark in missing).items():
        first = next(mark for mark in missing if mark.kind == kind)
        if is_dropped_alone(first):
            name = kind.replace("-", " ")
            yield kind, f"the template drops {count} of {totals[kind]} pieces of {name}"


def renders_list_repr(
    conversation: Conversation, row: TrainingRow, render_text: RenderText
) -> bool:
    """Whether the template renders the Python repr of a list of content parts.

    Each part gets a key that no template reads: it is rendered only with the part as a whole.
    """
    if not any(isinstance(message.get("content"), list) for message in conversation.messages):
        return False
    marked = []
    for message in conversation.messages:
        content: Any = message.get("content")
        if isinstance(content, list):
            parts = [
                {**part, _PART_MARK: _PART_MARK} if isinstance(part, dict) else part
                for part in content
            ]
            message = {**message, "content": parts}
        marked.append(message)
    return repr(_PART_MARK) in (_try_render(marked, row.tools, render_text) or "")


def count_dropped_images(
    conversation: Conversation, row: TrainingRow, render_text: RenderText
) -> tuple[int, int]:
    """Return how many images the template ignores, and how many there are."""
    messages = conversation.messages
    positions = [
        (at, number)
        for at, message in enumerate(messages)
        if isinstance(message.get("content"), list)
        for number, part in enumerate(message["content"])
        if isinstance(part, dict) and part.get("type") in _IMAGE_TYPES
    ]
    text = _try_render(messages, row.tools, render_text) if positions else None
    if text is None:
        return 0, len(positions)
    dropped = 0
    for at, number in positions:
        content = messages[at]["content"]
        without = {**messages[at], "content": content[:number] + content[number + 1 :]}
        changed = [*messages[:at], without, *messages[at + 1 :]]
        dropped += _try_render(changed, row.tools, render_text) == text
    return dropped, len(positions)


def find_merged_whitespace(
    conversation: Conversation, row: TrainingRow, tokenize: TokenizeMessages
) -> Iterator[str]:
    """Yield a message for each reply whose leading whitespace merges with the prompt's tokens."""
    for at in range(max(1, conversation.prompt_length), len(conversation.messages)):
        reply = conversation.messages[at]
        stripped = {
            name: value.lstrip() if isinstance(value, str) and name != "role" else value
            for name, value in reply.items()
        }
        if reply["role"] != "assistant" or stripped == reply:
            continue
        prompt = conversation.messages[:at]
        if _prompt_is_prefix(prompt, stripped, row, tokenize) and not _prompt_is_prefix(
            prompt, reply, row, tokenize
        ):
            yield (
                f"the prompt is not a token prefix of the row: message {at} begins with whitespace"
            )


def _missing_marks(
    marker: _Marker, conversation: Conversation, row: TrainingRow, render_text: RenderText
) -> list[_Mark] | None:
    """Return the marks that are not rendered; None if the template refuses the marked row."""
    text = _try_render(*marker.mark_conversation(conversation, row.tools), render_text)
    return None if text is None else [mark for mark in marker.marks if mark.word not in text]


def _has_text(value: Any) -> bool:
    return isinstance(value, str) and bool(value.strip())


def _insert_word(text: str, word: str) -> str:
    """Insert a word after the last word outside tags.

    Templates test how a text begins and ends (`</tool_response>`), and some drop what precedes
    `</think>`.
    """
    ends = [match.end() for match in _TAG_OR_WORD.finditer(text) if match[1]]
    at = ends[-1] if ends else len(text)
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


def _prompt_is_prefix(
    prompt: Sequence[JsonObject], reply: JsonObject, row: TrainingRow, tokenize: TokenizeMessages
) -> bool:
    """Whether the tokens of prompt and reply begin with the tokens of the prompt alone."""
    try:
        prompt_ids = tokenize(prompt, row.tools, True)
        ids = tokenize([*prompt, reply], row.tools, False)
    except TemplateRefused:
        return True
    return list(ids[: len(prompt_ids)]) == list(prompt_ids)


def _try_render(
    messages: list[JsonObject], tools: list[JsonObject] | None, render_text: RenderText
) -> str | None:
    """Render messages; None if the template refuses them."""
    try:
        return render_text(messages, tools)
    except TemplateRefused:
        return None
