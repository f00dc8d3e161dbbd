"""`ludus report`: write one file about runs, data sets, trained models and evaluations."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from ludus.cli.program import command
from ludus.options import Option, expand_path


@command
def report(
    sources: Annotated[
        list[str],
        Option(metavar="DIR"),
        "Runs (path, name or `last`), data sets, trained models and evaluations, in the "
        "order of the report.",
    ],
    *,
    out: Annotated[
        Path | None,
        Option(name="output", short="o", default="report.html", parse=expand_path),
        "File to write.",
    ] = None,
    title: Annotated[
        str | None, Option(default="titles of its sections"), "Title of the report."
    ] = None,
    samples: Annotated[
        int,
        Option(),
        "Maximum number of best and of worst transcripts per folder; 0 for none.",
    ] = 2,
) -> None:
    """Write a report to send to others: what was run, charts, verdicts and sample transcripts.

    The page is a single file, which opens from disk, runs no script and makes no request.

    Examples:

    ludus report evals/chain_sum

    ludus report runs/demo data/chain_sum models/chain_sum evals/chain_sum -o loop.html
    """
    from ludus.cli.command_line import end_if_checking
    from ludus.cli.program import name_command_flags
    from ludus.cli.run_lookup import resolve_run_path
    from ludus.reporting import report as write_report

    end_if_checking()
    path = write_report(
        [resolve_run_path(source) for source in sources],
        out or Path("report.html"),
        title=title,
        samples=samples,
        name_flags=name_command_flags,
    )
    print(f"report: {path} ({path.stat().st_size / 1024:,.0f} KiB)")
