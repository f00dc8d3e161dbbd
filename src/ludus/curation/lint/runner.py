"""Run all checks over training data: contents on every row, the student's template on a sample.

Files are streamed; only counts and examples are kept.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path

from pydantic_core import to_json

from ludus.curation.lint import conversation_checks as checks
from ludus.curation.lint.lint_rows import (
    MalformedRowError,
    SourceLocation,
    TrainingRow,
    parse_row,
    read_json_lines,
)
from ludus.curation.lint.report import Finding, Level, LintReport, RenderedExample
from ludus.curation.lint.template_checks import Student, check_row_with_template
from ludus.curation.token_lengths import TokenLengths
from ludus.data.jsonl import numbered_lines
from ludus.data.stable_hash import stable_hash
from ludus.data.tool_schema import JsonObject
from ludus.errors import RunError

LintProgress = Callable[[int, int], None]
"""Called with the number of rows done and the total."""
_TRAINED_COLUMNS = ("messages", "prompt", "completion", "chosen", "rejected", "tools")


def lint_files(
    files: Mapping[Path, int],
    student: Student | None = None,
    *,
    max_length: int | None = None,
    sample: int | None = 100,
    show: int = 0,
    seed: int = 0,
    progress: LintProgress = lambda done, total: None,
) -> LintReport:
    """Check every row of `files`, which maps paths to their number of rows (see `count_rows`).

    `sample` rows, or all if it is None, are also rendered with the student's template; `show` of
    those are kept in the report.
    """
    report = LintReport(files=dict(files), student=student.name if student else None)
    total = report.rows
    duplicates, lengths, refused = DuplicateFinder(), Counter[int](), 0
    sampled = sample_rows(total, total if sample is None else sample, seed)
    ordered = sorted(sampled)
    shown = {ordered[at] for at in sample_rows(len(ordered), show, seed)}
    lines = (line for path in files for line in read_json_lines(path))
    for at, (location, columns) in enumerate(lines):
        progress(at, total)
        try:
            row = parse_row(columns, location)
        except MalformedRowError as error:
            finding = Finding(location, "malformed", "error", str(error))
            report.add_findings([finding], rows_checked=total)
            continue
        findings = [*check_row(row, location), *duplicates.check(columns, location)]
        report.add_findings(findings, rows_checked=total)
        if student is None or at not in sampled:
            continue
        result = check_row_with_template(row, location, student, max_length=max_length)
        report.add_findings(result.findings, rows_checked=len(sampled))
        report.rendered += 1
        if result.conversations:
            lengths[result.length] += 1
        else:
            refused += 1
        if at in shown:
            report.shown += (
                RenderedExample(
                    location,
                    conversation.name,
                    rendered.truncate(max_length),
                    student.special_tokens,
                )
                for conversation, rendered in zip(
                    row.conversations, result.conversations, strict=False
                )
            )
    if student is not None:
        report.lengths = TokenLengths.from_counts(lengths, student.name, refused=refused)
    return report


def count_rows(files: Sequence[Path]) -> dict[Path, int]:
    """Count the rows of each file. Raises `RunError` if one is empty."""
    rows = {path: sum(1 for _ in numbered_lines(path)) for path in files}
    for path, count in rows.items():
        if not count:
            raise RunError(f"{path} is empty.")
    return rows


def sample_rows(total: int, size: int, seed: int) -> set[int]:
    """Draw one row from each of `size` equal stretches.

    Stratified, because neighbours in a file are often attempts at the same task.
    """
    if size >= total:
        return set(range(total))
    rng = random.Random(seed)
    edges = [total * part // size for part in range(size + 1)] if size > 0 else []
    return {rng.randrange(low, high) for low, high in pairwise(edges)}


def check_row(row: TrainingRow, location: SourceLocation) -> Iterator[Finding]:
    """Run all checks that need no student."""

    def findings(check: str, level: Level, messages: Iterable[str]) -> Iterator[Finding]:
        return (Finding(location, check, level, message) for message in messages)

    tools = row.tools
    for conversation in row.conversations:
        yield from findings("no-assistant", "error", checks.missing_assistant(conversation))
        yield from findings("roles", "warning", checks.misplaced_roles(conversation))
        # A conversation may have been rejected because of its calls.
        level: Level = "note" if conversation.name == "rejected" else "error"
        yield from findings("unknown-tool", level, checks.unknown_tools(conversation, tools))
        yield from findings("arguments-not-object", level, checks.unreadable_calls(conversation))
        for coercible, message in checks.invalid_arguments(conversation, tools):
            yield Finding(location, "arguments-unfit", "note" if coercible else level, message)
        yield from findings("no-tools", "warning", checks.calls_without_tools(conversation, tools))
        yield from findings("unanswered-call", "warning", checks.unanswered_calls(conversation))
        orphans = checks.results_without_call(conversation)
        yield from findings("answer-without-call", "warning", orphans)
        yield from findings("environment-tokens", "note", checks.environment_turns(conversation))
        if conversation.name != "rejected":
            leaks = checks.answers_in_prompt(conversation)
            yield from findings("answer-in-prompt", "warning", leaks)
    yield from findings("tool-schema", "warning", checks.invalid_schemas(tools))
    if row.is_pair and row.conversations[0].messages == row.conversations[1].messages:
        yield Finding(location, "equal-sides", "error", "chosen and rejected are the same")


class DuplicateFinder:
    """Finds rows that occurred before.

    Holds a hash and a location per row, about 170 bytes of memory.
    """

    def __init__(self) -> None:
        self._first_seen: dict[int, SourceLocation] = {}

    def check(self, columns: JsonObject, location: SourceLocation) -> Iterator[Finding]:
        """Compare the columns that are trained on; ids and rewards may differ."""
        trained = {name: columns[name] for name in _TRAINED_COLUMNS if name in columns}
        first = self._first_seen.setdefault(stable_hash(to_json(trained).decode()), location)
        if first is location:
            return
        if first.path == location.path:
            yield Finding(location, "duplicate", "warning", f"the same as line {first.line}")
        else:
            yield Finding(location, "test-in-train", "error", f"the same as {first}")
