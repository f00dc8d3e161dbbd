"""Replies that begin with white space which becomes one token with the end of the prompt."""

from __future__ import annotations

from typing import Any

import pytest
from policy.conversations import said
from students import with_tokens_of

from curation.lint.linting import HERE, under
from ludus.curation.lint.rows import parse_row
from ludus.curation.lint.student import Student, check_row_with_template


def speaker(*tokens: str) -> Student:
    """Its prompts end with a newline, and these are tokens of their own."""
    tokenizer = with_tokens_of("chatml")
    tokenizer.add_tokens(list(tokens))
    return Student("made", tokenizer)


def talk(*replies: str) -> dict[str, Any]:
    said_by_turns = [[said("user", "Go."), said("assistant", reply)] for reply in replies]
    return {"messages": [message for turn in said_by_turns for message in turn]}


def pair(chosen: str, rejected: str) -> dict[str, Any]:
    sides = {"chosen": [said("assistant", chosen)], "rejected": [said("assistant", rejected)]}
    return {"prompt": [said("user", "Go.")], **sides}


SWALLOWS = {"prompt-swallows": "warning"}


@pytest.mark.parametrize("row", [talk("\nYes."), talk("Yes.", "\nNo."), pair("Yes.", "\nNo.")])
def test_a_newline_that_the_prompt_swallows(row: dict[str, Any]) -> None:
    assert under(speaker("\n\n"), row) == SWALLOWS


def test_the_line_says_which_message_it_is() -> None:
    row = parse_row(talk("Yes.", "\nNo."), HERE)
    (found,) = check_row_with_template(row, HERE, speaker("\n\n"), max_length=None).findings
    assert found.message == "the prompt is no prefix of the row: message 3 begins with white space"


def test_white_space_that_stays_a_token_of_its_own_is_no_fault() -> None:
    assert under(speaker(), talk("\nYes.")) == {}
    assert under(speaker("\n\n"), talk(" Yes.", "Yes.\n\n")) == {}
