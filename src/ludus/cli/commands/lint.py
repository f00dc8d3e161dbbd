"""`ludus lint`: check training data, and show which tokens bear the loss."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

from ludus.cli import common
from ludus.cli.program import command
from ludus.options import Option, expand_path


@command
def lint(
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
    from ludus.cli.display.lint_report import print_lint_report
    from ludus.cli.display.status import status_callback
    from ludus.curation.lint.runner import find_data_files, lint_files

    files = find_data_files(data)  # Before a student is loaded, which takes seconds.
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
