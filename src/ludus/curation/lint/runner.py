"""Run all checks over training data: contents on every row, the student's template on a sample.

Files are streamed; only counts and examples are kept.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Mapping
from itertools import pairwise
from pathlib import Path

from ludus.curation.lint.conversation_checks import check_row
from ludus.curation.lint.lint_rows import DuplicateRowFinder, parse_lint_row, read_lint_rows
from ludus.curation.lint.report import Finding, LintExample, LintReport
from ludus.curation.lint.student import Student
from ludus.curation.lint.template_checks import check_row_with_template
from ludus.curation.token_lengths import TokenLengths
from ludus.data.config import check_at_least
from ludus.data.training_row import InvalidRow

LintProgress = Callable[[int, int], None]
"""Called with the number of rows done and the total."""


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
    check_at_least("max_length", max_length, 1)
    check_at_least("sample", sample, 1)
    check_at_least("show", show, 0)
    check_at_least("seed", seed, 0)
    report = LintReport(files=dict(files), student=student.name if student else None)
    total = report.rows
    duplicates, lengths, refused = DuplicateRowFinder(), Counter[int](), 0
    sampled = sample_rows(total, total if sample is None else sample, seed)
    ordered = sorted(sampled)
    shown = {ordered[at] for at in sample_rows(len(ordered), show, seed)}
    lines = (line for path in files for line in read_lint_rows(path))
    for at, (location, columns) in enumerate(lines):
        progress(at, total)
        try:
            row = parse_lint_row(columns, location)
        except InvalidRow as error:
            finding = Finding(location, "malformed", "error", str(error))
            report.add_findings([finding], rows_checked=total)
            continue
        findings = list(check_row(row, location))
        first = duplicates.find_first(columns, location)
        if first is not None and first.path == location.path:
            message = f"the same as line {first.line}"
            findings.append(Finding(location, "duplicate", "warning", message))
        elif first is not None:
            findings.append(Finding(location, "test-in-train", "error", f"the same as {first}"))
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
                LintExample(
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


def sample_rows(total: int, size: int, seed: int) -> set[int]:
    """Draw one row from each of `size` equal stretches.

    Stratified, because neighbours in a file are often attempts at the same task.
    """
    if size >= total:
        return set(range(total))
    rng = random.Random(seed)
    edges = [total * part // size for part in range(size + 1)] if size > 0 else []
    return {rng.randrange(low, high) for low, high in pairwise(edges)}
