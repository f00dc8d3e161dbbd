"""`ludus lint`: check training data, and show which tokens bear the loss."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from ludus.cli import common_options as common


def lint(
    data: Annotated[Path, typer.Argument(help="Folder of `ludus curate`, or a JSONL file.")],
    student: Annotated[
        str | None,
        typer.Option(
            help="Model to be trained: folder or Hub id. Needed for checks of its chat template."
        ),
    ] = None,
    max_length: Annotated[
        int | None, typer.Option(min=1, help="Maximum number of tokens per row in training.")
    ] = None,
    sample: Annotated[
        int, typer.Option(min=1, help="Number of rows to render with the student's chat template.")
    ] = 100,
    every: Annotated[bool, typer.Option("--all", help="Render all rows, not a sample.")] = False,
    show: Annotated[int, typer.Option(min=0, help="Number of rendered rows to print.")] = 1,
    seed: Annotated[int, typer.Option(help="Random seed of the sample.")] = 0,
    strict: Annotated[
        bool, typer.Option("--strict/--no-strict", help="Count warnings as errors.")
    ] = False,
    as_json: common.JsonObject = False,
) -> None:
    """Check training data before training, and show which tokens bear the loss.

    Example: ludus lint data/wordle --student Qwen/Qwen3-0.6B
    """
    from ludus.cli.display.lint_report import print_lint_report
    from ludus.cli.display.status import status_callback
    from ludus.curation.lint.lint_rows import count_rows, find_data_files
    from ludus.curation.lint.runner import lint_files

    files = count_rows(find_data_files(data))  # Before a student is loaded, which takes seconds.
    model = None
    if student is not None:
        from ludus.curation.lint.student import Student
        from ludus.policy.tokenizer import load_tokenizer
        from ludus.policy.vision.processor import load_vision_processor

        tokenizer = load_tokenizer(student)
        model = Student(student, tokenizer, lambda: load_vision_processor(student, tokenizer))
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
        typer.echo(json.dumps(report.as_json(strict=strict), ensure_ascii=False, allow_nan=False))
    else:
        print_lint_report(report, strict=strict)
    if not report.passed(strict=strict):
        raise typer.Exit(1)
