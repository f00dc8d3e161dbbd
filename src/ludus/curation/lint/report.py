"""Lint findings, counted by check, and the verdict on the data."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Literal, NamedTuple

from ludus.curation.lint.student import TokenLengths
from ludus.data.tool_schema import JsonObject
from ludus.policy.chat.chat_format import FAMILIES
from ludus.policy.chat.rendering import RenderedConversation

Level = Literal["error", "warning"]
MAX_EXAMPLES = 10
"""Findings kept per check; all of them are counted."""

ADVICE = {
    "malformed": "Repair the row: no trainer can read it.",
    "no-assistant": "Remove the row: it contains nothing to learn.",
    "roles": "Put the turns in order: system, user, then assistant and tool turns.",
    "unknown-tool": "Add the tool to `tools`, or remove the row.",
    "no-tools": "Add the tools that were offered as `tools`.",
    "tool-schema": "Repair the tool's parameters: they are not a valid JSON schema.",
    "arguments-not-object": "Remove the row: it trains calls that no tool can read.",
    "arguments-invalid": "Remove the row, or repair the call: it trains calls that are rejected.",
    "unanswered-call": "Add the tool result, or end the row with the call.",
    "answer-without-call": "Give the result the id of its call, or remove it.",
    "duplicate": "Keep one of them, unless it is meant to count twice.",
    "test-in-train": "Split by task: a score on rows that were trained on means nothing.",
    "equal-sides": "Remove the pair: neither side is better.",
    "template-unmarked": f"Use a chat model of a known family ({', '.join(FAMILIES)}, and those "
    "that TRL has templates for), or a chat template with {% generation %} marks.",
    "template-refuses": "Use another student, or write the row as its template expects it.",
    "no-loss": "Remove the row: training on it raises an error.",
    "stop-token": "Move the end-of-turn token inside {% generation %} in the template.",
    "control-tokens": "Check where it comes from: Ludus tokenizes it as text, other trainers and "
    "servers as the start or end of a turn.",
    "too-long": "Raise `max_length`, or remove the longest rows.",
    "cut-off": "Raise `max_length`: nothing of these rows is trained.",
    "drops-system-prompt": "Put the system prompt into the first user turn.",
    "drops-tools": "Describe the tools in the prompt, or use a student that supports tools.",
    "drops-tool-calls": "Write calls as text, or use a student that supports tools.",
    "drops-tool-results": "Write results as user turns, or use a student that supports tools.",
    "drops-reasoning": "Use a reasoning student, or remove the reasoning.",
    "drops-user-text": "Check the template: it does not render what the user said.",
    "drops-assistant-text": "Check the template: it does not render all that the model said.",
}
"""What to do about the findings of each check."""


class SourceLocation(NamedTuple):
    """A line of a file, counted from 1."""

    path: Path
    line: int

    def __str__(self) -> str:
        return f"{self.path}:{self.line}"


class Problem(NamedTuple):
    """What a check found in a row."""

    check: str
    level: Level
    message: str


@dataclass
class CheckResult:
    """All findings of one check at one level."""

    check: str
    level: Level
    rows_checked: int
    rows: int = 0
    """Rows with a finding."""
    examples: list[tuple[SourceLocation, str]] = field(default_factory=list)
    """The first locations, each with its message."""

    @property
    def share(self) -> float:
        return self.rows / self.rows_checked if self.rows_checked else 0.0

    @property
    def advice(self) -> str:
        return ADVICE[self.check]

    def as_json(self) -> JsonObject:
        location, message = self.examples[0]
        return {
            "check": self.check,
            "level": self.level,
            "rows": self.rows,
            "share": self.share,
            "first": str(location),
            "message": message,
            "advice": self.advice,
            "examples": [
                {"location": str(location), "message": message}
                for location, message in self.examples
            ],
        }


@dataclass(frozen=True, slots=True)
class LintExample:
    """A rendered conversation that the lint report shows."""

    location: SourceLocation
    side: str
    rendered: RenderedConversation
    special_tokens: frozenset[int] = frozenset()

    def as_json(self) -> JsonObject:
        return {
            "location": str(self.location),
            "side": self.side,
            "tokens": len(self.rendered.ids),
            "trained": sum(self.rendered.mask),
            "spans": [list(span) for span in self.rendered.spans],
            "text": self.rendered.text,
        }


@dataclass
class LintReport:
    """The findings in all files."""

    files: dict[Path, int] = field(default_factory=dict)
    """Number of rows by file."""
    student: str | None = None
    rendered: int = 0
    """Number of rows that were checked under the student's template."""
    results: dict[tuple[str, Level], CheckResult] = field(default_factory=dict)
    lengths: TokenLengths | None = None
    shown: list[LintExample] = field(default_factory=list)

    @property
    def rows(self) -> int:
        return sum(self.files.values())

    @property
    def findings(self) -> list[CheckResult]:
        """Results by level, then by share of rows."""
        return sorted(
            self.results.values(), key=lambda result: (result.level, -result.share, result.check)
        )

    def count_checks(self, level: Level) -> int:
        """Number of checks with findings of this level."""
        return sum(result.level == level for result in self.results.values())

    def passed(self, *, strict: bool) -> bool:
        return not self.count_checks("error") and not (strict and self.count_checks("warning"))

    def add(
        self, location: SourceLocation, problems: Iterable[Problem], *, rows_checked: int
    ) -> None:
        """Add the problems of one row. It counts once per check."""
        first = {(problem.check, problem.level): problem for problem in reversed([*problems])}
        for key, problem in first.items():
            result = self.results.setdefault(key, CheckResult(*key, rows_checked))
            result.rows += 1
            if len(result.examples) < MAX_EXAMPLES:
                result.examples.append((location, problem.message))

    def as_json(self, *, strict: bool) -> JsonObject:
        return {
            "files": {str(path): rows for path, rows in self.files.items()},
            "rows": self.rows,
            "student": self.student,
            "rendered": self.rendered,
            "errors": self.count_checks("error"),
            "warnings": self.count_checks("warning"),
            "passed": self.passed(strict=strict),
            "findings": [result.as_json() for result in self.findings],
            "lengths": asdict(self.lengths) if self.lengths else None,
            "shown": [example.as_json() for example in self.shown],
        }
