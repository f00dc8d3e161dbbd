"""`ludus lint`: the look before training."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rich.console import Console

    from ludus.curation.lint.report import LintReport, RenderedExample
    from ludus.curation.lint.runner import LintProgress
    from ludus.curation.lint.template_checks import Student
    from ludus.policy.chat.rendering import TextSpan

_STYLES = {"error": "bold red", "warning": "yellow", "note": "dim"}
_LOSS_OPEN, _LOSS_CLOSE = "⟦", "⟧"
"""Around what bears the loss, where there is no colour to say so."""


def lint(
    data: Annotated[Path, typer.Argument(help="A folder of `ludus curate`, or a JSONL file.")],
    student: Annotated[
        str | None, typer.Option(help="The model to be trained: a folder, or org/name on the Hub.")
    ] = None,
    max_length: Annotated[
        int | None, typer.Option(min=1, help="Tokens of a row that training will keep.")
    ] = None,
    sample: Annotated[
        int, typer.Option(min=1, help="How many rows to look at under the student's template.")
    ] = 100,
    every: Annotated[
        bool, typer.Option("--all", help="Look at every row under the student's template.")
    ] = False,
    show: Annotated[int, typer.Option(min=0, help="How many of these rows to print.")] = 1,
    seed: Annotated[int, typer.Option(help="Another seed samples other rows.")] = 0,
    strict: Annotated[
        bool, typer.Option("--strict/--no-strict", help="Count warnings as errors.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object, for machines.")] = False,
) -> None:
    """Look at training data before it is trained on, and see which tokens bear the loss.

    Example: ludus lint data/wordle --student Qwen/Qwen3-0.6B
    """
    from ludus.curation.lint.lint_rows import find_data_files
    from ludus.curation.lint.runner import count_rows, lint_files

    files = count_rows(find_data_files(data))  # Before a student is loaded, which takes seconds.
    to_train = _load_student(student) if student is not None else None
    with _progress_bar() as watch:
        report = lint_files(
            files,
            to_train,
            max_length=max_length,
            sample=None if every else sample,
            show=show,
            seed=seed,
            progress=watch,
        )
    if as_json:
        typer.echo(json.dumps(report.as_json(strict=strict), ensure_ascii=False, allow_nan=False))
    else:
        _print_report(report, strict=strict)
    if not report.passed(strict=strict):
        raise typer.Exit(1)


def _load_student(name: str) -> Student:
    from ludus.curation.lint.template_checks import Student
    from ludus.policy.tokenizer import load_tokenizer
    from ludus.policy.vision.model_families import load_vision_processor

    tokenizer = load_tokenizer(name)
    return Student(name, tokenizer, lambda: load_vision_processor(name, tokenizer))


@contextmanager
def _progress_bar() -> Iterator[LintProgress]:
    """A bar on a terminal; elsewhere nothing, because the result is all that is asked for."""
    from rich.progress import Progress

    from ludus.cli.display.console import console

    err = console(stderr=True)
    with Progress(console=err, transient=True, disable=not err.is_terminal) as bar:
        task = bar.add_task("lint", total=None)

        def watch(done: int, total: int) -> None:
            if done % 100 == 0:
                bar.update(task, completed=done, total=total)

        yield watch


def _print_report(report: LintReport, *, strict: bool) -> None:
    from ludus.cli.display.console import console

    out = console()
    _print_findings(out, report)
    for shown in report.shown:
        _print_row(out, shown)
    if report.lengths is not None and report.lengths.count:
        _print_line(out, str(report.lengths))
    _print_line(out, _coverage_text(report))
    _print_verdict(out, report, strict=strict)


def _print_findings(out: Console, report: LintReport) -> None:
    """A table with room for words: under each line what was found, and what to do about it."""
    from rich.text import Text

    from ludus.cli.display.console import escape_control_chars

    head = ("", "check", "rows", "share", "first")
    rows = [
        (
            each.level,
            each.check,
            f"{each.rows:,}",
            _format_percent(each.share),
            str(each.first.location),
        )
        for each in report.findings
    ]
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    for at, row in enumerate([head, *rows] if rows else []):
        cells = [
            cell.rjust(width) if name in ("rows", "share") else cell.ljust(width)
            for name, cell, width in zip(head, row, widths, strict=True)
        ]
        line = Text(escape_control_chars("  ".join(cells).rstrip()), _STYLES.get(row[0], "bold"))
        out.print(line, soft_wrap=True)
        if at:
            tally = report.findings[at - 1]
            words = Text(" " * (widths[0] + 2) + escape_control_chars(tally.first.message))
            words.append(f"{_full_stop(tally.first.message)} {tally.advice}", "dim")
            out.print(words, soft_wrap=True)


def _full_stop(message: str) -> str:
    return "" if message.endswith((".", "!", "?")) else "."


def _format_percent(share: float) -> str:
    return "<0.1%" if 0 < share < 0.001 else f"{share:.1%}"


def _print_row(out: Console, shown: RenderedExample) -> None:
    """The whole text of a row; what bears the loss stands out, in colour or in brackets."""
    from rich.text import Text

    from ludus.cli.display.console import escape_control_chars

    made = shown.rendered
    side = f" {shown.side}" if shown.side else ""
    head = f"{shown.location}{side}  {len(made.ids):,} tokens, {sum(made.mask):,} bear the loss"
    out.print(Text(escape_control_chars(head), "bold"), soft_wrap=True)
    plain = out.no_color or not out.is_terminal
    text, inside = Text(), False
    for piece in made.text_spans(shown.special_tokens):
        if plain and piece.has_loss != inside:
            text.append(_LOSS_OPEN if piece.has_loss else _LOSS_CLOSE)
        inside = piece.has_loss
        text.append(escape_control_chars(piece.text), _piece_style(piece))
    text.append(_LOSS_CLOSE if plain and inside else "")
    out.print(text, soft_wrap=True)


def _piece_style(piece: TextSpan) -> str:
    if piece.has_loss:
        return "bold green underline" if piece.special else "bold green"
    return "cyan" if piece.special else "dim"


def _print_line(out: Console, words: str) -> None:
    from ludus.cli.display.console import escape_control_chars

    out.print(escape_control_chars(words), markup=False, soft_wrap=True)


def _coverage_text(report: LintReport) -> str:
    from ludus.cli.display.formatting import plural

    rows = plural(report.rows, "row")
    if report.student is None:
        return (
            f"{rows}, looked at without a template: name the --student to see which tokens bear "
            "the loss, what its template drops, and how long rows are."
        )
    if report.rendered < report.rows:
        return f"{rows}, {report.rendered:,} of them under the template; --all takes every row."
    return f"{rows}, all under the template of {report.student}."


def _print_verdict(out: Console, report: LintReport, *, strict: bool) -> None:
    from rich.text import Text

    from ludus.cli.display.formatting import plural

    errors, warnings = report.count_checks("error"), report.count_checks("warning")
    found = f"{plural(errors, 'error')}, {plural(warnings, 'warning')}"
    if report.passed(strict=strict):
        out.print(Text(f"Fit to train on: {found} (exit code 0).", "bold green"), soft_wrap=True)
        return
    why = "" if errors else ", which --strict counts as errors"
    out.print(Text(f"Not fit to train on: {found}{why} (exit code 1).", "bold red"), soft_wrap=True)
