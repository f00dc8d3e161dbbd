"""The output of `ludus lint`: findings, rendered rows with their loss mask, and the verdict."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ludus.cli.display.console import console, escape_control_chars
from ludus.cli.display.formatting import plural
from ludus.cli.program import name_flags

if TYPE_CHECKING:
    from rich.console import Console

    from ludus.curation.lint.report import LintExample, LintReport

_STYLES = {"error": "bold red", "warning": "yellow"}
_LOSS_OPEN, _LOSS_CLOSE = "⟦", "⟧"
"""Brackets around text that bears the loss, where there is no colour."""


def print_lint_report(report: LintReport, *, strict: bool) -> None:
    """Print the whole report; `strict` counts warnings as errors."""
    from rich.text import Text

    out = console()
    _print_findings(out, report)
    for example in report.shown:
        _print_lint_example(out, example)
    lines = [_coverage_text(report)]
    if report.lengths is not None and report.lengths.count:
        lines.insert(0, str(report.lengths))
    for line in lines:
        out.print(escape_control_chars(line), markup=False, soft_wrap=True)
    errors, warnings = report.count_checks("error"), report.count_checks("warning")
    counts = f"{plural(errors, 'error')}, {plural(warnings, 'warning')}"
    if report.passed(strict=strict):
        verdict = Text(f"Fit to train on: {counts} (exit code 0).", "bold green")
    else:
        reason = "" if errors else ", which --strict counts as errors"
        verdict = Text(f"Not fit to train on: {counts}{reason} (exit code 1).", "bold red")
    out.print(verdict, soft_wrap=True)


def _print_findings(out: Console, report: LintReport) -> None:
    """Print a line per finding, and below it an example and the advice."""
    from rich.text import Text

    if not report.findings:
        return
    head = ("", "check", "rows", "share", "first")
    rows = []
    for finding in report.findings:
        share = "<0.1%" if 0 < finding.share < 0.001 else f"{finding.share:.1%}"
        location = str(finding.examples[0][0])
        rows.append((finding.level, finding.check, f"{finding.rows:,}", share, location))
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]

    def print_cells(row: tuple[str, ...]) -> None:
        cells = [
            cell.rjust(width) if name in ("rows", "share") else cell.ljust(width)
            for name, cell, width in zip(head, row, widths, strict=True)
        ]
        line = escape_control_chars("  ".join(cells).rstrip())
        out.print(Text(line, _STYLES.get(row[0], "bold")), soft_wrap=True)

    print_cells(head)
    for row, finding in zip(rows, report.findings, strict=True):
        print_cells(row)
        message = finding.examples[0][1]
        stop = "" if message.endswith((".", "!", "?")) else "."
        text = Text(" " * (widths[0] + 2) + escape_control_chars(message))
        text.append(f"{stop} {name_flags(finding.advice)}", "dim")
        out.print(text, soft_wrap=True)


def _print_lint_example(out: Console, example: LintExample) -> None:
    """Print a rendered row of the report; what bears the loss is coloured or in brackets."""
    from rich.text import Text

    rendered = example.rendered
    side = f" {example.side}" if example.side else ""
    counts = f"{len(rendered.ids):,} tokens, {sum(rendered.mask):,} bear the loss"
    head = f"{example.location}{side}  {counts}"
    out.print(Text(escape_control_chars(head), "bold"), soft_wrap=True)
    has_brackets = out.no_color or not out.is_terminal
    text, in_loss = Text(), False
    for span in rendered.text_spans(example.special_tokens):
        if has_brackets and span.has_loss != in_loss:
            text.append(_LOSS_OPEN if span.has_loss else _LOSS_CLOSE)
        in_loss = span.has_loss
        if in_loss:
            style = "bold green underline" if span.special else "bold green"
        else:
            style = "cyan" if span.special else "dim"
        text.append(escape_control_chars(span.text), style)
    text.append(_LOSS_CLOSE if has_brackets and in_loss else "")
    out.print(text, soft_wrap=True)


def _coverage_text(report: LintReport) -> str:
    rows = plural(report.rows, "row")
    if report.student is None:
        return (
            f"{rows}, checked without a chat template: give --student to see which tokens bear "
            "the loss, what its template drops, and how long rows are."
        )
    if report.rendered < report.rows:
        return f"{rows}, {report.rendered:,} of them rendered; --all renders every row."
    return f"{rows}, all rendered with the chat template of {report.student}."
