"""Run all checks over training data: contents on every row, the student's template on a sample.

Files are streamed; only counts and examples are kept.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path

from pydantic_core import from_json, to_json

from ludus.curation.lint.report import LintExample, LintReport, Problem, SourceLocation
from ludus.curation.lint.row_checks import check_row
from ludus.curation.lint.student import Student, TokenLengths
from ludus.curation.lint.template_checks import check_row_with_template
from ludus.data.config import check_at_least
from ludus.data.files import stable_hash
from ludus.data.json_files import numbered_lines
from ludus.data.tool_schema import JsonObject
from ludus.data.training_row import InvalidRow, TrainingRow, parse_training_row, row_kind
from ludus.errors import RunError

_DATASET_FILES = ("train.jsonl", "test.jsonl")
_TRAINED_COLUMNS = ("messages", "prompt", "completion", "chosen", "rejected", "tools")


def find_lint_files(data: Path) -> list[Path]:
    """List the files to lint: the JSONL files of a data set folder, or the given file."""
    if data.is_file() and data.suffix != ".parquet":
        return [data]
    files = [data / name for name in _DATASET_FILES if (data / name).is_file()]
    if not files:
        raise RunError(
            f"{data} has neither {' nor '.join(_DATASET_FILES)}. Create them with `ludus curate`, "
            "or name a JSONL file."
        )
    return files


def read_rows(path: Path) -> Iterator[tuple[SourceLocation, JsonObject]]:
    """Yield the location and the columns of every row; raise `RunError` for other lines."""
    for number, line in numbered_lines(path):
        location = SourceLocation(path, number)
        try:
            value = from_json(line)
        except ValueError as error:
            raise RunError(
                f"{location} is not JSON: {error}. Each line must be one JSON object."
            ) from None
        if not isinstance(value, dict):
            raise RunError(f"{location} is not a JSON object. Each line must be one JSON object.")
        yield location, value


def parse_lint_row(columns: JsonObject, location: SourceLocation) -> TrainingRow:
    """Parse a row; raises `InvalidRow` if the content of a column is wrong."""
    if row_kind(columns) is None:
        raise RunError(
            f"{location} has neither `messages` nor `prompt` with `completion` or with `chosen` "
            "and `rejected`, so it cannot be trained on. `ludus curate` writes such rows."
        )
    return parse_training_row(columns)


def lint_files(
    files: Sequence[Path],
    student: Student | None = None,
    *,
    max_length: int | None = None,
    sample: int | None = 100,
    show: int = 0,
    seed: int = 0,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> LintReport:
    """Check every row of the files.

    `sample` rows (None: all) are also rendered with the student's template; the report keeps `show`
    of them. `progress` is called with the number of rows done and the total.
    """
    check_at_least("max_length", max_length, 1)
    check_at_least("sample", sample, 1)
    check_at_least("show", show, 0)
    check_at_least("seed", seed, 0)
    counts = {path: sum(1 for _ in numbered_lines(path)) for path in files}
    for path, count in counts.items():
        if not count:
            raise RunError(f"{path} is empty.")
    report = LintReport(files=counts, student=student.name if student else None)
    total = report.rows
    sampled = sample_rows(total, total if sample is None else sample, seed)
    ordered = sorted(sampled)
    shown = {ordered[at] for at in sample_rows(len(ordered), show, seed)}
    first_seen: dict[int, SourceLocation] = {}
    """By the hash of the columns that are trained on; ids and rewards may differ."""
    lengths, refused = Counter[int](), 0
    lines = (line for path in files for line in read_rows(path))
    for at, (location, columns) in enumerate(lines):
        progress(at, total)
        try:
            row = parse_lint_row(columns, location)
        except InvalidRow as error:
            report.add(location, [Problem("malformed", "error", str(error))], rows_checked=total)
            continue
        problems = list(check_row(row))
        trained = {name: columns[name] for name in _TRAINED_COLUMNS if name in columns}
        first = first_seen.setdefault(stable_hash(to_json(trained).decode()), location)
        if first.path != location.path:
            problems.append(Problem("test-in-train", "error", f"the same as {first}"))
        elif first.line != location.line:
            problems.append(Problem("duplicate", "warning", f"the same as line {first.line}"))
        report.add(location, problems, rows_checked=total)
        if student is None or at not in sampled:
            continue
        conversations, problems = check_row_with_template(row, student, max_length=max_length)
        report.add(location, problems, rows_checked=len(sampled))
        report.rendered += 1
        if conversations:
            lengths[max(len(rendered.ids) for rendered in conversations)] += 1
        else:
            refused += 1
        if at in shown:
            special = student.special_tokens
            for side, rendered in zip(row.conversations, conversations, strict=False):
                example = LintExample(location, side.name, rendered.truncate(max_length), special)
                report.shown.append(example)
    if student is not None:
        report.lengths = TokenLengths.from_counts(lengths, student.name, refused=refused)
    return report


def sample_rows(total: int, size: int, seed: int) -> set[int]:
    """Draw a sample of rows: one from each of `size` equal stretches.

    Stratified, because neighbours in a file are often attempts at the same task.
    """
    if size >= total:
        return set(range(total))
    rng = random.Random(seed)
    edges = [total * part // size for part in range(size + 1)] if size > 0 else []
    return {rng.randrange(low, high) for low, high in pairwise(edges)}
