"""Tables of an evaluation: the output of `ludus eval`, and of `ludus show`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ludus.cli.display.console import console, escape_control_chars, print_text
from ludus.cli.program import name_flags
from ludus.data.sparkline import sparkline

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text

    from ludus.evaluation import Evaluation
    from ludus.evaluation.table import ResultTable

_COLUMN_PADDING = 3
_VERDICT_STYLES = {"better": "bold green", "worse": "bold red", "not resolved": "bold"}
_LABEL_COLUMN = "Candidate"
_MIN_LABEL_WIDTH = 10


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
    from ludus.evaluation.table import build_slice_tables, build_tables, build_wide_table

    out, tables = console(), build_tables(evaluation)
    out.print(_fit_table(tables, out.width) or _list_cells(build_wide_table(evaluation)))
    for table in build_slice_tables(evaluation):
        out.print()
        out.print(_fit_table([table], out.width) or _list_cells(table))
    for line in _level_curves(evaluation):
        print_text(line)
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


def _fit_table(tables: list[ResultTable], width: int) -> Table | None:
    """Render the first table that fits; each is tried with intervals beside, then below values.

    Then the last one is tried with folded labels. None if the terminal is too narrow for it, too.
    """
    from rich.table import Table
    from rich.text import Text

    layouts = [(table, separator) for table in tables for separator in (" ", "\n")]
    fitting = (layout for layout in layouts if _table_width(*layout) <= width)
    table, separator = next(fitting, layouts[-1])
    if _table_width(table, separator, max_label=_MIN_LABEL_WIDTH) > width:
        return None
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
    return rendered


def _list_cells(table: ResultTable) -> Text:
    """A heading for each row, with a line for each of its cells."""
    from rich.text import Text

    text = Text()
    for title, *cells in table.rows:
        text.append(f"{escape_control_chars(title)}\n", style="bold")
        for name, cell in zip(table.header[1:], cells, strict=True):
            text.append(escape_control_chars(f"  {name}: {cell}\n"))
    text.rstrip()
    return text


def _level_curves(evaluation: Evaluation) -> list[str]:
    """The results by difficulty as a line of blocks for each candidate, from easy to hard."""
    from ludus.evaluation.slices import build_level_curves

    width, lines = max(len(score.label) for score in evaluation.scores), [""]
    for curves in build_level_curves(evaluation.slices, evaluation.verdict_metrics[:1]):
        name = f"{curves.x_title}=" if curves.x_title else ""
        ends = f"{name}{curves.labels[0]} to {name}{curves.labels[-1]}"
        title = ", ".join(filter(None, (curves.metric.title.lower(), curves.environment)))
        for score, estimates in zip(evaluation.scores, curves.candidates, strict=True):
            values = [estimate.value for estimate in estimates if estimate is not None]
            high = 1.0 if curves.metric.is_share else max([0.0, *values])
            curve = sparkline(values, low=min([0.0, *values]), high=high)
            lines.append(f"{score.label:<{width}}  {curve}  {title}, {ends}")
    return lines if len(lines) > 1 else []


def _table_width(table: ResultTable, separator: str, max_label: int | None = None) -> int:
    """The width of a table; with `max_label` that of the column of labels is limited."""
    widths = []
    for column in zip(table.header, *table.rows, strict=True):
        if max_label is not None and column[0] == _LABEL_COLUMN:
            widths.append(min(max_label, max(map(len, column))))
            continue
        lines = (
            line for cell in column for line in cell.replace(" (", f"{separator}(").split("\n")
        )
        widths.append(max(map(len, lines)))
    return sum(widths) + _COLUMN_PADDING * (len(widths) - 1)
