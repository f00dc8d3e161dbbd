"""The output of `ludus curate`: a table of steps, and the rows of each split."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ludus.cli.display.console import console, escape_control_chars
from ludus.cli.display.formatting import plural

if TYPE_CHECKING:
    from ludus.curation import CurateReport


def print_curate_report(out: Path, report: CurateReport) -> None:
    """Print what each step removed, the rows of each split, and the folder."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False)
    table.add_column("step", no_wrap=True)
    table.add_column("removed", justify="right", no_wrap=True)
    table.add_column("left", justify="right", no_wrap=True)
    table.add_column("")
    table.add_row("episodes", "", f"{report.episodes:,}", "")
    for step in report.steps:
        style = "" if step.removed else "dim"
        detail = escape_control_chars(step.detail)
        cells = (step.reason, f"{step.removed:,}", f"{step.remaining:,}", detail)
        table.add_row(*(Text(cell, style=style) for cell in cells))
    stdout = console()
    stdout.print(table)
    for location in report.unreadable:
        stdout.print(Text(f"unreadable: {location}", style="yellow"), soft_wrap=True)
    for split, rows in report.rows.items():
        tasks = plural(report.tasks[split], "task")
        if split == "test" and report.test_target not in (None, report.tasks[split]):
            tasks += f", not {report.test_target:,}: near copies stay in one split"
        stdout.print(f"{split}: {plural(rows, 'row')} of {tasks}", soft_wrap=True)
    if report.tutored:
        agreement = "" if report.agreement is None else f", agreement {report.agreement:.1%}"
        stdout.print(f"tutor: {plural(report.tutored, 'episode')}{agreement}")
    if report.families:
        stdout.print(f"{plural(report.families, 'task')} kept in the split of a near copy")
    if report.lengths is not None:
        stdout.print(Text(str(report.lengths)), soft_wrap=True)
    stdout.print(Text(f"data set: {out}"), soft_wrap=True)
