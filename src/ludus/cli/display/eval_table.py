"""Tables of an evaluation: the output of `ludus eval`, and of `ludus show`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ludus.cli.display.console import console, escape_control_chars, print_text
from ludus.cli.flags import name_flags

if TYPE_CHECKING:
    from rich.table import Table

    from ludus.evaluation import Evaluation
    from ludus.evaluation.table import ResultTable

_COLUMN_PADDING, _UNLIMITED_WIDTH = 3, 10_000
_VERDICT_STYLES = {"better": "bold green", "worse": "bold red", "not resolved": "bold"}
_LABEL_COLUMN = "Candidate"


def print_evaluation(evaluation: Evaluation) -> None:
    """Print the results, the method of their intervals, notes, and the folder."""
    from ludus.evaluation.table import build_notes, describe_method

    print_results(evaluation)
    print_text(describe_method(evaluation), "dim")
    for note in build_notes(evaluation):
        print_text(name_flags(note), "yellow")
    print_text(f"evaluation: {evaluation.folder}")


def print_results(evaluation: Evaluation) -> None:
    """Print the tables and the verdicts."""
    from ludus.evaluation.table import build_slice_tables, build_tables

    console().print(_fit_table(build_tables(evaluation)))
    for table in build_slice_tables(evaluation):
        console().print()
        console().print(_fit_table([table]))
    for outcome, text in evaluation.describe_verdicts():
        print_text(text, _VERDICT_STYLES[outcome.value])


def print_stored_evaluation(folder: Path) -> None:
    """Print the results of a stored evaluation, and how to see one of its episodes."""
    from ludus.evaluation.results import load_evaluation

    evaluation = load_evaluation(folder)
    settings = evaluation.settings
    title = f"{settings['episodes']:,} episodes of {settings['environment']}, seed "
    print_text(f"{title}{settings['seed']}", "bold")
    print_results(evaluation)
    print_text(f"Report:     {folder / 'README.md'}")
    print_text(f"An episode: ludus show {folder / evaluation.scores[0].label} 0")


def _fit_table(tables: Sequence[ResultTable]) -> Table:
    """Render the first table that fits, each with intervals beside or below values; else the last.

    Labels are folded if not even that one fits.
    """
    from rich.table import Table
    from rich.text import Text

    out = console()
    for table, separator in ((table, separator) for table in tables for separator in (" ", "\n")):
        rendered = Table(box=None, pad_edge=False, padding=(0, _COLUMN_PADDING, 0, 0))
        for name in table.header:
            # Only labels may be folded, so that numbers stay in one piece.
            rendered.add_column(name, no_wrap=name != _LABEL_COLUMN, overflow="fold")
        for row in table.rows:
            cells = []
            for cell in row:
                value, bracket, interval = escape_control_chars(cell).partition(" (")
                dim = f"{separator}({interval}" if bracket else ""
                cells.append(Text.assemble(value, (dim, "dim")))
            rendered.add_row(*cells)
        unlimited = out.options.update_width(_UNLIMITED_WIDTH)
        if out.measure(rendered, options=unlimited).maximum <= out.width:
            break
    return rendered
