"""Rows with images under a student with vision."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from policy.conversations import said
from policy.vision.image_env import picture, untaught

from curation.lint.checking import check_under
from ludus.curation.lint.report import SourceLocation
from ludus.curation.lint.runner import parse_lint_row
from ludus.curation.lint.student import Student
from ludus.policy.load import Policy

LOOK = {"type": "text", "text": "Look."}


@pytest.fixture(scope="module", params=["qwen2_5_vl", "qwen3_vl"])
def policy(request: pytest.FixtureRequest) -> Policy:
    return untaught(request.param)


def image(width: int, height: int) -> dict[str, Any]:
    shown = picture(width, height, "red")
    return {
        "type": "image_url",
        "image_url": {"url": f"data:{shown.mime_type};base64,{shown.data}"},
    }


def talk(*parts: dict[str, Any]) -> dict[str, Any]:
    return {"messages": [said("user", list(parts)), said("assistant", "Done.")]}  # type: ignore[arg-type]


def student_with_vision(policy: Policy) -> Student:
    return Student("seer", policy.tokenizer, lambda: policy.vision)


def length(policy: Policy, columns: dict[str, Any]) -> int:
    row = parse_lint_row(columns, SourceLocation(Path("rows.jsonl"), 1))
    (rendered,) = student_with_vision(policy).render_row(row)
    assert len(rendered.ids) == len(rendered.mask) == len(rendered.starts)
    return len(rendered.ids)


def test_images_are_fine_for_a_student_with_vision(policy: Policy) -> None:
    assert check_under(student_with_vision(policy), talk(LOOK, image(24, 16))) == {}


def test_image_tokens_count_towards_the_length(policy: Policy) -> None:
    small, large = (length(policy, talk(LOOK, image(*size))) for size in ((16, 16), (16, 32)))
    assert large - small == 4
    both = length(policy, talk(LOOK, image(16, 16), image(16, 32)))
    assert both == large + 4 + 2, "the second has a token before and after it"


def test_image_tokens_have_no_loss(policy: Policy) -> None:
    row = parse_lint_row(talk(LOOK, image(16, 32)), SourceLocation(Path("rows.jsonl"), 1))
    (rendered,) = student_with_vision(policy).render_row(row)
    trained = "".join(piece.text for piece in rendered.text_spans() if piece.has_loss)
    assert "Done." in trained and "image" not in trained
    assert "<|image_pad|>" in rendered.text


@pytest.mark.parametrize(
    "part", [{"type": "image"}, {"type": "image_url", "image_url": {"url": "https://x.org/a.png"}}]
)
def test_an_unusable_image_is_an_error(policy: Policy, part: dict[str, Any]) -> None:
    assert check_under(student_with_vision(policy), talk(LOOK, part)) == {
        "template-refuses": "error"
    }
