"""One pass over training data: cheap checks on every row, a student's on some or on all.

Files are streamed; of a row only what is counted or shown is kept.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path

from ludus.curate.lengths import Lengths
from ludus.curate.lint.finding import Finding
from ludus.curate.lint.plain import Duplicates, plain_findings
from ludus.curate.lint.report import Report, Shown
from ludus.curate.lint.rows import Malformed, Place, lines_of, row_of
from ludus.curate.lint.student import Student, look
from ludus.data.lines import numbered_lines
from ludus.data.tools import JsonObject
from ludus.errors import RunError

Watch = Callable[[int, int], None]
"""Is told how many rows are done, and of how many."""


def examine(
    files: Mapping[Path, int],
    student: Student | None = None,
    *,
    max_length: int | None = None,
    sample: int | None = 100,
    show: int = 0,
    seed: int = 0,
    watch: Watch = lambda done, total: None,
) -> Report:
    """Check every row of these files, which are given with how many rows they hold (`counted`).

    `sample` of the rows are looked at under the student's template, None: all of them.
    """
    report = Report(files=dict(files), student=student.name if student else None)
    total = report.rows
    seen, lengths = Duplicates(), Counter[int]()
    looked = picks(total, total if sample is None else sample, seed)
    in_order = sorted(looked)
    shown = {in_order[at] for at in picks(len(looked), show, seed)}
    refused = 0
    for at, (place, columns) in enumerate(_lines(files)):
        watch(at, total)
        try:
            row = row_of(columns, place)
        except Malformed as error:
            report.count([Finding(place, "malformed", "error", str(error))], of=total)
            continue
        report.count([*plain_findings(row, place), *seen.findings(columns, place)], of=total)
        if student is None or at not in looked:
            continue
        view = look(row, place, student, max_length=max_length)
        report.count(view.findings, of=len(looked))
        report.rendered += 1
        refused += not view.sides
        lengths.update([view.length] if view.sides else [])
        if at in shown:
            report.shown += (
                Shown(place, side.name, rendered.truncate(max_length), student.special)
                for side, rendered in zip(row.sides, view.sides, strict=False)
            )
    if student is not None:
        report.lengths = Lengths.of(lengths, student.name, refused=refused)
    return report


def counted(files: Sequence[Path]) -> dict[Path, int]:
    """Each file and how many rows it holds."""
    rows = {path: sum(1 for _ in numbered_lines(path)) for path in files}
    for path, number in rows.items():
        if not number:
            raise RunError(f"{path} is empty: there is nothing to look at.")
    return rows


def picks(total: int, wanted: int, seed: int) -> set[int]:
    """Which rows to take: one from each of `wanted` equal stretches, the same for the same seed.

    Spread, because neighbours in a file are often attempts at the same task.
    """
    if wanted >= total:
        return set(range(total))
    draw = random.Random(seed)
    edges = [total * part // wanted for part in range(wanted + 1)] if wanted > 0 else []
    return {draw.randrange(low, high) for low, high in pairwise(edges)}


def _lines(files: Iterable[Path]) -> Iterator[tuple[Place, JsonObject]]:
    for path in files:
        yield from lines_of(path)
