"""Run the checks on single rows."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from policy.conversations import TOOLS, call, calling, said
from tiny_tokenizers import of_family

from ludus.curation.lint.report import SourceLocation
from ludus.curation.lint.row_checks import check_row
from ludus.curation.lint.runner import parse_lint_row
from ludus.curation.lint.student import Student
from ludus.curation.lint.template_checks import check_row_with_template

LOCATION = SourceLocation(Path("train.jsonl"), 1)
ASK, REPLY = said("user", "Begin."), said("assistant", "Gladly.")
GUESS = calling(call("guess", {"word": "crane"}))


def talk(*messages: dict[str, Any], tools: Any = TOOLS) -> dict[str, Any]:
    return {"messages": list(messages), "tools": tools}


def pair(chosen: list[Any], rejected: list[Any]) -> dict[str, Any]:
    return {"prompt": [ASK], "chosen": chosen, "rejected": rejected, "tools": TOOLS}


def check_contents(row: dict[str, Any]) -> dict[str, str]:
    """Run the checks that need no student: level by check."""
    return {each.check: each.level for each in check_row(parse_lint_row(row, LOCATION))}


def check_under(
    family: str | Student, row: dict[str, Any], max_length: int | None = None
) -> dict[str, str]:
    """Run the checks under a student's template: level by check."""
    student = Student(family, of_family(family)) if isinstance(family, str) else family
    parsed = parse_lint_row(row, LOCATION)
    _, problems = check_row_with_template(parsed, student, max_length=max_length)
    return {each.check: each.level for each in problems}


def write_rows(path: Path, rows: Iterable[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))
    return path
