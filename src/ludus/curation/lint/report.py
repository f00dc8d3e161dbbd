"""Findings, counted: by check, with the first places, and whether the data may be trained on."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ludus.curation.lint.finding import ADVICE, LEVELS, Finding, Level
from ludus.curation.lint.rows import SourceLocation
from ludus.curation.token_lengths import TokenLengths
from ludus.policy.chat.rendering import RenderedConversation

MAX_EXAMPLES = 10
"""How many findings of each check are kept; all of them are counted."""


@dataclass
class CheckResult:
    """How often a check found something."""

    check: str
    level: Level
    rows_checked: int = 0
    """How many rows were looked at for it."""
    rows: int = 0
    examples: list[Finding] = field(default_factory=list)

    @property
    def first(self) -> Finding:
        return self.examples[0]

    @property
    def share(self) -> float:
        return self.rows / self.rows_checked if self.rows_checked else 0.0

    @property
    def advice(self) -> str:
        return ADVICE[self.check]

    def as_json(self) -> dict[str, Any]:
        return {
            "check": self.check,
            "level": self.level,
            "rows": self.rows,
            "share": self.share,
            "first": str(self.first.location),
            "message": self.first.message,
            "advice": self.advice,
            "examples": [
                {"place": str(each.location), "message": each.message} for each in self.examples
            ],
        }


@dataclass(frozen=True, slots=True)
class RenderedExample:
    """A side of a row, to be looked at."""

    location: SourceLocation
    side: str
    rendered: RenderedConversation
    special_tokens: frozenset[int] = frozenset()
    """Tokens that begin and end turns."""

    def as_json(self) -> dict[str, Any]:
        made = self.rendered
        return {
            "place": str(self.location),
            "side": self.side,
            "tokens": len(made.ids),
            "trained": sum(made.mask),
            "spans": [list(span) for span in made.spans],
            "text": made.text,
        }


@dataclass
class LintReport:
    """All that was found."""

    files: dict[Path, int] = field(default_factory=dict)
    """Each file and its rows."""
    student: str | None = None
    rendered: int = 0
    """How many rows were looked at under the student's template."""
    results: dict[tuple[str, Level], CheckResult] = field(default_factory=dict)
    lengths: TokenLengths | None = None
    shown: list[RenderedExample] = field(default_factory=list)

    @property
    def rows(self) -> int:
        return sum(self.files.values())

    @property
    def findings(self) -> list[CheckResult]:
        """The worst and most frequent first."""
        order = {level: at for at, level in enumerate(LEVELS)}
        tallies = self.results.values()
        return sorted(tallies, key=lambda each: (order[each.level], -each.share, each.check))

    def count_checks(self, level: Level) -> int:
        """How many checks found something of this level."""
        return sum(tally.level == level for tally in self.results.values())

    def passed(self, *, strict: bool) -> bool:
        return not self.count_checks("error") and not (strict and self.count_checks("warning"))

    def add_findings(self, findings: Iterable[Finding], *, rows_checked: int) -> None:
        """Take up what was found in one row, which counts once for each check."""
        counted = set()
        for finding in findings:
            key = finding.check, finding.level
            tally = self.results.setdefault(key, CheckResult(*key))
            tally.rows_checked = rows_checked
            if key not in counted and len(tally.examples) < MAX_EXAMPLES:
                tally.examples.append(finding)
            tally.rows += key not in counted
            counted.add(key)

    def as_json(self, *, strict: bool) -> dict[str, Any]:
        return {
            "files": {str(path): rows for path, rows in self.files.items()},
            "rows": self.rows,
            "student": self.student,
            "rendered": self.rendered,
            "errors": self.count_checks("error"),
            "warnings": self.count_checks("warning"),
            "notes": self.count_checks("note"),
            "passed": self.passed(strict=strict),
            "findings": [tally.as_json() for tally in self.findings],
            "lengths": self.lengths.as_json() if self.lengths else None,
            "shown": [each.as_json() for each in self.shown],
        }
