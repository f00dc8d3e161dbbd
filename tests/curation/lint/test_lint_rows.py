"""What cannot be read as a row."""

from __future__ import annotations

from typing import Any

import pytest
from policy.conversations import said

from curation.lint.checking import ASK, LOCATION
from ludus.curation.lint.runner import parse_lint_row
from ludus.data.training_row import InvalidRow
from ludus.errors import RunError


@pytest.mark.parametrize(
    ("columns", "column"),
    [
        ({"messages": "hi"}, "`messages`"),
        ({"messages": ["hi"]}, r"`messages\[0\]`"),
        ({"messages": [{"content": "hi"}]}, r"`messages\[0\]`"),
        ({"messages": [said("assistant", "", tool_calls=[{}])]}, "tool_calls"),
        ({"messages": [ASK], "tools": "["}, "`tools`"),
        ({"messages": [ASK], "tools": [{}]}, "`tools`"),
        ({"prompt": [], "chosen": [], "rejected": None}, "`rejected`"),
    ],
)
def test_a_malformed_row_names_the_column(columns: dict[str, Any], column: str) -> None:
    with pytest.raises(InvalidRow, match=column):
        parse_lint_row(columns, LOCATION)


def test_a_row_without_training_columns_raises() -> None:
    with pytest.raises(RunError, match=r"train.jsonl:1"):
        parse_lint_row({"text": "hi"}, LOCATION)


def test_tools_may_be_a_json_string() -> None:
    assert parse_lint_row({"messages": [ASK], "tools": "[]"}, LOCATION).tools == []
