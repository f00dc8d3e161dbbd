"""Content that is a list of parts: what a template that expects a string makes of it.

As in `dropped`, a template is asked by rendering. An image leaves no word to look for, so its part
is left out instead: where nothing changes, the template never showed it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ludus.curation.lint.dropped import RenderText
from ludus.curation.lint.rows import Conversation, TrainingRow
from ludus.data.tool_schema import JsonObject
from ludus.errors import TemplateRefused

_PART_MARK = "zqpartqz"
_IMAGE_TYPES = ("image", "image_url", "input_image")


def renders_list_repr(side: Conversation, row: TrainingRow, render_text: RenderText) -> bool:
    """Whether Python's own spelling of a list comes out where its words should.

    Each part gets a key that no template asks for: it comes out only with the part as a whole.
    """
    if not any(isinstance(message.get("content"), list) for message in side.messages):
        return False
    marked = [_mark_parts(message) for message in side.messages]
    return repr(_PART_MARK) in (_try_render(marked, row, render_text) or "")


def count_dropped_images(
    side: Conversation, row: TrainingRow, render_text: RenderText
) -> tuple[int, int]:
    """How many images the template does not show, and how many there are."""
    places = list(_image_positions(side.messages))
    whole = _try_render(side.messages, row, render_text) if places else None
    if whole is None:
        return 0, len(places)
    lost = sum(
        _try_render(_remove_part(side.messages, *at), row, render_text) == whole for at in places
    )
    return lost, len(places)


def _image_positions(messages: list[JsonObject]) -> Iterator[tuple[int, int]]:
    """Where images stand: which part of which message."""
    for at, message in enumerate(messages):
        content = message.get("content")
        for number, part in enumerate(content if isinstance(content, list) else []):
            if isinstance(part, dict) and part.get("type") in _IMAGE_TYPES:
                yield at, number


def _remove_part(messages: list[JsonObject], at: int, number: int) -> list[JsonObject]:
    content = messages[at]["content"]
    changed = {**messages[at], "content": content[:number] + content[number + 1 :]}
    return [*messages[:at], changed, *messages[at + 1 :]]


def _mark_parts(message: JsonObject) -> JsonObject:
    content: Any = message.get("content")
    if not isinstance(content, list):
        return message
    marked = [
        {**part, _PART_MARK: _PART_MARK} if isinstance(part, dict) else part for part in content
    ]
    return {**message, "content": marked}


def _try_render(
    messages: list[JsonObject], row: TrainingRow, render_text: RenderText
) -> str | None:
    """None where the template refuses it."""
    try:
        return render_text(messages, row.tools)
    except TemplateRefused:
        return None
