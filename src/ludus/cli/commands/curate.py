"""`ludus curate`: select episodes as training rows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from ludus.cli import common
from ludus.cli.command_line import end_if_checking, typed_command
from ludus.cli.common import resolve_run_path
from ludus.cli.display.console import escape_control_chars, print_table, print_text
from ludus.cli.display.formatting import plural
from ludus.cli.flags import command
from ludus.curation.config import CurateConfig
from ludus.options import Option

if TYPE_CHECKING:
    from ludus.curation import CurateReport


@command
def curate_command(
    runs: Annotated[
        list[str],
        Option(metavar="RUN"),
        "Run folders, their names in runs/, `last`, or episodes.jsonl files.",
    ],
    *,
    out: Annotated[
        Path,
        common.output_option(metavar="OUT"),
        "Folder for the data set.",
    ],
    config: CurateConfig,
    explain: Annotated[
        bool,
        Option("Output", hidden=True),
        "Write left_out.jsonl with the reason for each removed episode.",
    ] = False,
    overwrite: common.Overwrite = False,
    as_json: common.JsonObject = False,
) -> None:
    """Select episodes and write them as rows for SFT, DPO or another tool.

    Broken and unscored episodes and exact copies are removed. The report, and the data set's card,
    say how many episodes each step removed.

    Examples:

    ludus curate runs/wordle --to sft --min-reward 0.8 --test-size 0.1 -o data/wordle

    ludus curate runs/a runs/b --to dpo --pairs all --min-margin 0.3 -o data/pairs
    """
    from ludus.cli.display.status import status_callback
    from ludus.curation import pipeline

    end_if_checking()
    with status_callback() as progress:
        report = pipeline.curate(
            [resolve_run_path(run) for run in runs],
            out,
            config,
            overwrite=overwrite,
            explain=explain,
            command=typed_command(),
            progress=progress,
        )
    if as_json:
        print(json.dumps({"folder": str(out), **report.as_json()}, allow_nan=False))
    else:
        print_curate_report(out, report)


def print_curate_report(out: Path, report: CurateReport) -> None:
    """Print what each step removed, the rows of each split, and the folder."""
    from rich.text import Text

    rows: list[tuple[str | Text, ...]] = [("episodes", "", f"{report.episodes:,}", "")]
    for step in report.steps:
        style = "" if step.removed else "dim"
        cells = (step.reason, f"{step.removed:,}", f"{step.remaining:,}", step.detail)
        rows.append(tuple(Text(escape_control_chars(cell), style=style) for cell in cells))
    print_table(("step", "removed", "kept", ""), rows, right=("removed", "kept"))
    for location in report.unreadable:
        print_text(f"unreadable: {location}", "yellow")
    for split, count in report.rows.items():
        tasks = plural(report.tasks[split], "task")
        print_text(f"{split}: {plural(count, 'row')} of {tasks}")
    if report.tutored:
        agreement = "" if report.agreement is None else f", agreement {report.agreement:.1%}"
        print_text(f"tutor: {plural(report.tutored, 'episode')}{agreement}")
    if report.families:
        print_text(f"{plural(report.families, 'task')} kept in the split of a near copy")
    print_text(f"data set: {out}")
