"""Findings of single rows, by the names of the checks."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from students import of_family

from ludus.curation.lint.plain import check_row
from ludus.curation.lint.rows import SourceLocation, parse_row
from ludus.curation.lint.student import Student, check_row_with_template

HERE = SourceLocation(Path("train.jsonl"), 1)


def plain(row: dict[str, Any]) -> dict[str, str]:
    """The checks that fault a row by itself, and their levels."""
    return {each.check: each.level for each in check_row(parse_row(row, HERE), HERE)}


def under(
    family: str | Student, row: dict[str, Any], max_length: int | None = None
) -> dict[str, str]:
    """The checks that fault a row under a student's template, and their levels."""
    student = Student(family, of_family(family)) if isinstance(family, str) else family
    found = check_row_with_template(
        parse_row(row, HERE), HERE, student, max_length=max_length
    ).findings
    return {each.check: each.level for each in found}


def written(path: Path, rows: Iterable[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))
    return path
