"""Content as a list of parts under templates that take it, and under some that do not."""

from __future__ import annotations

from typing import Any

import pytest
from policy.conversations import said
from students import WORDS, student

from curation.lint.linting import under
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


def made(template: str) -> Student:
    return Student("made", student(template))


@pytest.mark.parametrize("row", [showing(LOOK), showing(LOOK, URL), showing(URL)])
def test_a_list_that_is_written_as_python_writes_it(row: dict[str, Any]) -> None:
    assert under(made(WORDS), row) == {"content-as-list": "error"}


def test_a_list_inside_a_pair() -> None:
    row = {"prompt": [said("user", "Hi.")], "chosen": [said("assistant", "Yes.")]}
    row["rejected"] = showing(LOOK)["messages"]
    assert under(made(WORDS), row) == {"content-as-list": "error"}


@pytest.mark.parametrize("family", ["qwen3_5_think", "gemma3", "glm4moe", "llama3"])
def test_a_template_that_takes_parts(family: str) -> None:
    assert under(family, showing(LOOK, LOOK)) == {}


def test_words_that_look_like_a_list_are_words() -> None:
    row = {"messages": [said("user", repr([LOOK])), said("assistant", "Done.")]}
    assert under(made(WORDS), row) == {}


def test_an_image_that_the_template_does_not_show() -> None:
    assert under(made(WITHOUT_IMAGES), showing(LOOK, URL)) == {"drops-image": "warning"}
    assert under("gemma3", showing(LOOK, URL)) == {"drops-image": "warning"}, "ours shows none"


def test_an_image_that_the_template_shows() -> None:
    assert under("qwen3_5_think", showing(LOOK, URL, IMAGE)) == {}
