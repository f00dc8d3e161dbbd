"""One pass over training data: cheap checks on every row, a student's on some or on all.

Files are streamed; of a row only what is counted or shown is kept.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path

from ludus.curation.lint.finding import Finding
from ludus.curation.lint.plain import DuplicateFinder, check_row
from ludus.curation.lint.report import LintReport, RenderedExample
from ludus.curation.lint.rows import MalformedRowError, SourceLocation, parse_row, read_json_lines
from ludus.curation.lint.student import Student, check_row_with_template
from ludus.curation.token_lengths import TokenLengths
from ludus.data.episode_reader import numbered_lines
from ludus.data.tool_schema import JsonObject
from ludus.errors import RunError

LintProgress = Callable[[int, int], None]
"""Is told how many rows are done, and of how many."""


def lint_files(
    files: Mapping[Path, int],
    student: Student | None = None,
    *,
    max_length: int | None = None,
    sample: int | None = 100,
    show: int = 0,
    seed: int = 0,
    on_progress: LintProgress = lambda done, total: None,
) -> LintReport:
    """Check every row of these files, which are given with how many rows they hold (`counted`).

    `sample` of the rows are looked at under the student's template, None: all of them.
    """
    report = LintReport(files=dict(files), student=student.name if student else None)
    total = report.rows
    seen, lengths = DuplicateFinder(), Counter[int]()
    looked = sample_rows(total, total if sample is None else sample, seed)
    in_order = sorted(looked)
    shown = {in_order[at] for at in sample_rows(len(looked), show, seed)}
    refused = 0
    for at, (place, columns) in enumerate(_iter_lines(files)):
        on_progress(at, total)
        try:
            row = parse_row(columns, place)
        except MalformedRowError as error:
            report.add_findings(
                [Finding(place, "malformed", "error", str(error))], rows_checked=total
            )
            continue
        report.add_findings(
            [*check_row(row, place), *seen.check(columns, place)], rows_checked=total
        )
        if student is None or at not in looked:
            continue
        view = check_row_with_template(row, place, student, max_length=max_length)
        report.add_findings(view.findings, rows_checked=len(looked))
        report.rendered += 1
        refused += not view.sides
        lengths.update([view.length] if view.sides else [])
        if at in shown:
            report.shown += (
                RenderedExample(
                    place, side.name, rendered.truncate(max_length), student.special_tokens
                )
                for side, rendered in zip(row.conversations, view.sides, strict=False)
            )
    if student is not None:
        report.lengths = TokenLengths.from_counts(lengths, student.name, refused=refused)
    return report


def count_rows(files: Sequence[Path]) -> dict[Path, int]:
    """Each file and how many rows it holds."""
    rows = {path: sum(1 for _ in numbered_lines(path)) for path in files}
    for path, number in rows.items():
        if not number:
            raise RunError(f"{path} is empty: there is nothing to look at.")
    return rows


def sample_rows(total: int, size: int, seed: int) -> set[int]:
    """Which rows to take: one from each of `wanted` equal stretches, the same for the same seed.

    Spread, because neighbours in a file are often attempts at the same task.
    """
    if size >= total:
        return set(range(total))
    draw = random.Random(seed)
    edges = [total * part // size for part in range(size + 1)] if size > 0 else []
    return {draw.randrange(low, high) for low, high in pairwise(edges)}


def _iter_lines(files: Iterable[Path]) -> Iterator[tuple[SourceLocation, JsonObject]]:
    for path in files:
        yield from read_json_lines(path)
