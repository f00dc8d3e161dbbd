"""Content that is a list of parts: what a template that expects a string makes of it.

As in `dropped`, a template is asked by rendering. An image leaves no word to look for, so its part
is left out instead: where nothing changes, the template never showed it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ludus.curate.lint.dropped import Write
from ludus.curate.lint.rows import Row, Side
from ludus.data.tools import JsonObject
from ludus.errors import TemplateRefused

_MARK = "zqpartqz"
_IMAGES = ("image", "image_url", "input_image")


def written_as_list(side: Side, row: Row, write: Write) -> bool:
    """Whether Python's own spelling of a list comes out where its words should.

    Each part gets a key that no template asks for: it comes out only with the part as a whole.
    """
    if not any(isinstance(message.get("content"), list) for message in side.messages):
        return False
    marked = [_with_marks(message) for message in side.messages]
    return repr(_MARK) in (_text(marked, row, write) or "")


def images_left_out(side: Side, row: Row, write: Write) -> tuple[int, int]:
    """How many images the template does not show, and how many there are."""
    places = list(_images(side.messages))
    whole = _text(side.messages, row, write) if places else None
    if whole is None:
        return 0, len(places)
    lost = sum(_text(_without(side.messages, *at), row, write) == whole for at in places)
    return lost, len(places)


def _images(messages: list[JsonObject]) -> Iterator[tuple[int, int]]:
    """Where images stand: which part of which message."""
    for at, message in enumerate(messages):
        content = message.get("content")
        for number, part in enumerate(content if isinstance(content, list) else []):
            if isinstance(part, dict) and part.get("type") in _IMAGES:
                yield at, number


def _without(messages: list[JsonObject], at: int, number: int) -> list[JsonObject]:
    content = messages[at]["content"]
    changed = {**messages[at], "content": content[:number] + content[number + 1 :]}
    return [*messages[:at], changed, *messages[at + 1 :]]


def _with_marks(message: JsonObject) -> JsonObject:
    content: Any = message.get("content")
    if not isinstance(content, list):
        return message
    marked = [{**part, _MARK: _MARK} if isinstance(part, dict) else part for part in content]
    return {**message, "content": marked}


def _text(messages: list[JsonObject], row: Row, write: Write) -> str | None:
    """None where the template refuses it."""
    try:
        return write(messages, row.tools)
    except TemplateRefused:
        return None
