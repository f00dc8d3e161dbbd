"""Replies whose leading whitespace merges with the last token of the prompt."""

from __future__ import annotations

from typing import Any

import pytest
from policy.conversations import said
from tiny_tokenizers import with_tokens_of

from curation.lint.row_checks import LOCATION, check_under
from ludus.curation.lint.lint_rows import parse_lint_row
from ludus.curation.lint.student import Student
from ludus.curation.lint.template_checks import check_row_with_template


def student_with_tokens(*tokens: str) -> Student:
    """A student whose prompts end with a newline, with these added tokens."""
    tokenizer = with_tokens_of("chatml")
    tokenizer.add_tokens(list(tokens))
    return Student("made", tokenizer)


def talk(*replies: str) -> dict[str, Any]:
    said_by_turns = [[said("user", "Go."), said("assistant", reply)] for reply in replies]
    return {"messages": [message for turn in said_by_turns for message in turn]}


def pair(chosen: str, rejected: str) -> dict[str, Any]:
    sides = {"chosen": [said("assistant", chosen)], "rejected": [said("assistant", rejected)]}
    return {"prompt": [said("user", "Go.")], **sides}


MERGED = {"prompt-swallows": "warning"}


@pytest.mark.parametrize("row", [talk("\nYes."), talk("Yes.", "\nNo."), pair("Yes.", "\nNo.")])
def test_a_newline_that_merges_with_the_prompt(row: dict[str, Any]) -> None:
    assert check_under(student_with_tokens("\n\n"), row) == MERGED


def test_the_message_is_named() -> None:
    row = parse_lint_row(talk("Yes.", "\nNo."), LOCATION)
    result = check_row_with_template(row, LOCATION, student_with_tokens("\n\n"), max_length=None)
    assert "message 3" in result.findings[0].message


def test_whitespace_that_stays_a_token_of_its_own_is_fine() -> None:
    assert check_under(student_with_tokens(), talk("\nYes.")) == {}
    assert check_under(student_with_tokens("\n\n"), talk(" Yes.", "Yes.\n\n")) == {}
