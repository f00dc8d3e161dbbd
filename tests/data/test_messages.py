"""The text of messages in JSON."""

from __future__ import annotations

from typing import Any

import pytest

from ludus.data.messages import prompt_text

IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}
MESSAGES: list[dict[str, Any]] = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": [{"type": "text", "text": "Which bird?"}, IMAGE]},
    {"role": "tool", "content": None},
    {"role": "assistant", "content": "An owl."},
    {"role": "user", "content": "Thanks."},
]


def test_a_prompt_ends_before_the_first_reply() -> None:
    assert prompt_text(MESSAGES) == "Which bird?\n"
    assert prompt_text(MESSAGES, image_text="[image]") == "Which bird?\n[image]\n"
    assert prompt_text("Which bird?") == "Which bird?"


def test_a_message_without_a_role_is_not_taken_for_a_prompt() -> None:
    with pytest.raises(KeyError):
        prompt_text([{"from": "human", "value": "Which bird?"}])
