"""`ludus lint`: check training rows, and show which tokens bear the loss."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from ludus.cli import common
from ludus.cli.display.console import console, escape_control_chars, print_table, print_text
from ludus.cli.display.formatting import plural
from ludus.cli.flags import command, name_flags
from ludus.options import Option, expand_path

if TYPE_CHECKING:
    from ludus.curation.lint.report import LintExample, LintReport

_LINT_STYLES = {"error": "bold red", "warning": "yellow"}
_LOSS_OPEN, _LOSS_CLOSE = "⟦", "⟧"
"""Brackets around text with loss, if there is no colour."""


@command
def lint_command(
    data: Annotated[Path, Option(parse=expand_path), "Folder of `ludus curate`, or a JSONL file."],
    *,
    student: Annotated[
        str | None,
        Option(),
        "Model to be trained: folder or Hub id. Needed for checks of its chat template.",
    ] = None,
    max_length: Annotated[
        int | None, Option(), "Maximum number of tokens per row in training."
    ] = None,
    sample: Annotated[
        int, Option(), "Number of rows to render with the student's chat template."
    ] = 100,
    every: Annotated[bool, Option(name="all"), "Render all rows, not a sample."] = False,
    show: Annotated[int, Option(), "Number of rendered rows to print."] = 1,
    seed: Annotated[int, Option(), "Random seed of the sample."] = 0,
    strict: Annotated[bool, Option(name="strict"), "Count warnings as errors."] = False,
    as_json: common.JsonObject = False,
) -> None:
    """Check training data before training, and show which tokens bear the loss.

    Example: ludus lint data/wordle --student Qwen/Qwen3-0.6B
    """
    from ludus.cli.display.status import status_callback
    from ludus.curation.lint.runner import find_lint_files, lint_files

    files = find_lint_files(data)  # Before a student is loaded, which takes seconds.
    model = None
    if student is not None:
        from ludus.curation.lint.student import Student

        model = Student.load(student)
    with status_callback() as show_progress:
        report = lint_files(
            files,
            model,
            max_length=max_length,
            sample=None if every else sample,
            show=show,
            seed=seed,
            progress=lambda done, total: show_progress("lint", done, total),
        )
    if as_json:
        print(json.dumps(report.as_json(strict=strict), ensure_ascii=False, allow_nan=False))
    else:
        print_lint_report(report, strict=strict)
    if not report.passed(strict=strict):
        raise SystemExit(1)


def print_lint_report(report: LintReport, *, strict: bool) -> None:
    """Print findings with an example and the advice, rendered rows, lengths and the verdict."""
    from rich.text import Text

    rows = []
    for finding in report.findings:
        share = "<0.1%" if 0 < finding.share < 0.001 else f"{finding.share:.1%}"
        location = escape_control_chars(str(finding.examples[0][0]))
        cells = (finding.level, finding.check, f"{finding.rows:,}", share, location)
        style = _LINT_STYLES.get(finding.level, "bold")
        rows.append([Text(cell, style=style) for cell in cells])
    if rows:
        print_table(("", "check", "rows", "share", "first"), rows, right=("rows", "share"))
    for finding in report.findings:
        message = finding.examples[0][1]
        stop = "" if message.endswith((".", "!", "?")) else "."
        text = Text(escape_control_chars(f"{finding.check}: {message}{stop} "))
        text.append(name_flags(finding.advice), "dim")
        console().print(text, soft_wrap=True)
    for example in report.shown:
        print_lint_row(example)
    if report.lengths is not None and report.lengths.count:
        print_text(str(report.lengths))
    coverage = f"all rendered with the chat template of {report.student}"
    if report.student is None:
        coverage = "checked without a chat template: --student shows which tokens bear the loss"
    elif report.rendered < report.rows:
        coverage = f"{report.rendered:,} of them rendered; --all renders every row"
    print_text(f"{plural(report.rows, 'row')}, {coverage}.")
    errors, warnings = report.count_checks("error"), report.count_checks("warning")
    counts = f"{plural(errors, 'error')}, {plural(warnings, 'warning')}"
    if report.passed(strict=strict):
        print_text(f"Fit to train on: {counts} (exit code 0).", "bold green")
    else:
        reason = "" if errors else ", which --strict counts as errors"
        print_text(f"Not fit to train on: {counts}{reason} (exit code 1).", "bold red")


def print_lint_row(example: LintExample) -> None:
    """Print a rendered row; text that bears the loss is coloured or in brackets."""
    from rich.text import Text

    out, rendered = console(), example.rendered
    side = f" {example.side}" if example.side else ""
    counts = f"{len(rendered.ids):,} tokens, {sum(rendered.mask):,} bear the loss"
    print_text(f"{example.location}{side}  {counts}", "bold")
    has_brackets = out.no_color or not out.is_terminal
    text, in_loss = Text(), False
    for span in rendered.text_spans(example.special_tokens):
        if has_brackets and span.has_loss != in_loss:
            text.append(_LOSS_OPEN if span.has_loss else _LOSS_CLOSE)
        in_loss = span.has_loss
        style = "bold green" if in_loss else "dim"
        text.append(escape_control_chars(span.text), style)
    text.append(_LOSS_CLOSE if has_brackets and in_loss else "")
    out.print(text, soft_wrap=True)
