"""The checks of conversations that need no student: a failing and a passing row for each."""

from __future__ import annotations

from typing import Any

import pytest
from policy.conversations import ENDED, PLAYED, TALK, answer, call, calling, said

from curation.lint.checking import ASK, GUESS, REPLY, check_contents, pair, talk


@pytest.mark.parametrize("row", [TALK, PLAYED, ENDED, pair([REPLY], [GUESS])])
def test_good_rows_have_no_findings(row: dict[str, Any]) -> None:
    assert check_contents(row) == {}


@pytest.mark.parametrize("row", [talk(), talk(ASK), pair([], [REPLY]), pair([REPLY], [ASK])])
def test_rows_without_an_assistant_turn(row: dict[str, Any]) -> None:
    assert check_contents(row)["no-assistant"] == "error"


@pytest.mark.parametrize(
    "row",
    [
        talk(REPLY),
        talk(ASK, REPLY, REPLY),
        talk(ASK, said("system", "Late."), REPLY),
        talk(ASK, answer("no"), REPLY),
        talk(ASK, said("critic", "Bad."), REPLY),
    ],
)
def test_roles_out_of_order(row: dict[str, Any]) -> None:
    assert check_contents(row)["roles"] == "warning"


@pytest.mark.parametrize(
    ("prompt", "reply"),
    [
        ("The word is Crane.", GUESS),
        ("Do not say 4711!", calling(call("add", {"a": 4711, "b": 1}))),
        ("Is it Paris, or Rome?", said("assistant", "Paris.")),
    ],
)
def test_answer_in_the_prompt(prompt: str, reply: dict[str, Any]) -> None:
    assert check_contents(talk(said("user", prompt), reply)) == {"answer-in-prompt": "warning"}


@pytest.mark.parametrize(
    ("prompt", "reply"),
    [
        ("The cranes are here.", GUESS),
        ("Add 17 and 25.", calling(call("add", {"a": 17, "b": 25}))),
        ("Why?", said("assistant", "Why? " * 20)),
    ],
)
def test_parts_of_words_short_answers_and_long_texts_are_not_leaks(
    prompt: str, reply: dict[str, Any]
) -> None:
    assert check_contents(talk(said("user", prompt), reply)) == {}


def test_an_answer_in_a_tool_result_is_not_a_leak() -> None:
    found = calling(call("guess", {"word": "found"}, "2"))
    assert check_contents(talk(ASK, GUESS, answer("try found"), found)) == {}


def test_pairs_with_equal_sides() -> None:
    assert check_contents(pair([REPLY], [REPLY])) == {"equal-sides": "error"}
