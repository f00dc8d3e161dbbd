"""The checks of conversations that need no student: a failing and a passing row for each."""

from __future__ import annotations

from typing import Any

import pytest
from policy.conversations import ENDED, PLAYED, TALK, answer, said

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


def test_pairs_with_equal_sides() -> None:
    assert check_contents(pair([REPLY], [REPLY])) == {"equal-sides": "error"}
