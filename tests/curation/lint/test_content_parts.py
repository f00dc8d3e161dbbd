"""Lists of content parts under templates with and without support for them."""

from __future__ import annotations

from typing import Any

import pytest
from policy.conversations import said
from tiny_tokenizers import WORDS, student

from curation.lint.checking import check_under
from ludus.curation.lint.student import Student

LOOK = {"type": "text", "text": "Look."}
URL = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
IMAGE = {"type": "image"}
WITHOUT_IMAGES = WORDS.replace(
    "{{ message.content }}",
    "{% if message.content is string %}{{ message.content }}{% else %}"
    "{% for part in message.content if part.type == 'text' %}{{ part.text }}{% endfor %}"
    "{% endif %}",
)


def showing(*parts: dict[str, Any]) -> dict[str, Any]:
    return {"messages": [said("user", list(parts)), said("assistant", "Done.")]}  # type: ignore[arg-type]


def student_with_template(template: str) -> Student:
    return Student("made", student(template))


@pytest.mark.parametrize("family", ["qwen3_5_think", "gemma3", "glm4moe", "llama3"])
def test_a_template_that_supports_parts(family: str) -> None:
    assert check_under(family, showing(LOOK, LOOK)) == {}


def test_text_that_looks_like_a_list_is_text() -> None:
    row = {"messages": [said("user", repr([LOOK])), said("assistant", "Done.")]}
    assert check_under(student_with_template(WORDS), row) == {}


def test_an_image_that_the_template_renders() -> None:
    assert check_under("qwen3_5_think", showing(LOOK, URL, IMAGE)) == {}
