"""The episodes of some runs as one table, and what becomes of each of them.

DuckDB reads the files: in parallel, and with as little memory as it is given. The table holds of
an episode what it is chosen by, never its messages. Every step of curating marks the rows that it
leaves out with its reason, once and for all: so each episode is kept, or counted under exactly one
reason, by construction.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import accumulate, islice, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ludus.curation.line_index import LineIndex
from ludus.curation.load_episodes import create_episodes_table, quote_sql, validate_where
from ludus.errors import MissingExtra

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

DUCKDB_MEMORY_LIMIT = "1GB"
"""What DuckDB may take before it goes on on the disk."""
UNREADABLE = "unreadable"
_CHUNK_ROWS = 10_000


@dataclass(frozen=True, slots=True)
class FilterStep:
    """What one step of curating left out."""

    reason: str
    """A word or two; the same in the table, the card and `curation.json`."""
    removed: int
    left: int
    detail: str = ""
    """What was asked: `reward >= 0.8`."""


class Catalog:
    """One row for each line of the files; `reason` is null as long as the episode is kept."""

    def __init__(
        self, database: DuckDBPyConnection, files: Sequence[Path], places: LineIndex
    ) -> None:
        self.files = files
        self.steps: list[FilterStep] = []
        self._database = database
        self._line_index = places
        self._row_offsets = self._find_first_rows()

    def _find_first_rows(self) -> list[int]:
        """The row of each file's first line; a file without lines has the next one's."""
        counts = dict(self.sql("SELECT file, count(*) FROM episodes GROUP BY file"))
        return list(accumulate((counts.get(at, 0) for at in range(len(self.files))), initial=0))

    def read_line(self, row: int) -> bytes:
        """The line that a row stands for; in order, `lines` is quicker."""
        file = bisect_right(self._row_offsets, row) - 1
        return self._line_index.read_line(file, row - self._row_offsets[file])

    def read_lines(self, query: str, *parameters: Any) -> Iterator[tuple[int, int, bytes]]:
        """The lines of the rows that a query gives, each with a mark (1 to 255) that it gives too.

        In the order of the files, whatever that of the query: each file is read once.
        """
        marks = bytearray(self._row_offsets[-1])
        for row, mark in self.stream(query, *parameters):
            marks[row] = mark
        for file, (first, end) in enumerate(pairwise(self._row_offsets)):
            for at, mark, line in self._line_index.read_marked(file, bytes(marks[first:end])):
                yield first + at, mark, line

    def location(self, row: int) -> tuple[Path, int]:
        """The file and what an editor calls the line."""
        file = bisect_right(self._row_offsets, row) - 1
        return self.files[file], self._line_index.line_number(file, row - self._row_offsets[file])

    def sql(self, query: str, *parameters: Any) -> list[tuple[Any, ...]]:
        return self._database.execute(query, parameters).fetchall()

    def stream(self, query: str, *parameters: Any) -> Iterator[tuple[Any, ...]]:
        """Rows a few thousand at a time, on a cursor of their own."""
        with self._database.cursor() as cursor:
            cursor.execute(query, parameters)
            while rows := cursor.fetchmany(_CHUNK_ROWS):
                yield from rows

    def create_table(
        self, name: str, columns: Mapping[str, str], rows: Iterable[Sequence[Any]]
    ) -> None:
        """A table of what was worked out outside of SQL."""
        typed = ", ".join(f"{column} {kind}" for column, kind in columns.items())
        lists = ", ".join(f"unnest(?::{kind}[])" for kind in columns.values())
        self.sql(f"CREATE OR REPLACE TABLE {name} ({typed})")
        rest = iter(rows)
        while batch := list(islice(rest, _CHUNK_ROWS)):
            self.sql(f"INSERT INTO {name} SELECT {lists}", *map(list, zip(*batch, strict=True)))

    def exclude(self, reason: str, condition: str, *parameters: Any, detail: str = "") -> int:
        """Mark the kept rows for which the condition holds, and note the step."""
        kept = self.kept
        self.sql(
            f"UPDATE episodes SET reason = ? WHERE reason IS NULL AND ({condition})",
            reason,
            *parameters,
        )
        left = self.kept
        self.steps.append(FilterStep(reason, kept - left, left, detail))
        return kept - left

    @property
    def total(self) -> int:
        return int(self.sql("SELECT count(*) FROM episodes")[0][0])

    @property
    def kept(self) -> int:
        return int(self.sql("SELECT count(*) FROM episodes WHERE reason IS NULL")[0][0])

    @property
    def excluded_counts(self) -> dict[str, int]:
        """How many episodes went for which reason, in the order of the steps."""
        counted = dict(
            self.sql("SELECT reason, count(*) FROM episodes WHERE reason NOT NULL GROUP BY 1")
        )
        order = dict.fromkeys([step.reason for step in self.steps])
        return {reason: counted[reason] for reason in order if reason in counted}


@contextmanager
def open_catalog(
    files: Sequence[Path],
    folder: Path,
    *,
    where: str | None = None,
    contents: bool = True,
    memory_limit: str = DUCKDB_MEMORY_LIMIT,
) -> Iterator[Catalog]:
    """Read the files into a table that lies in `folder`, with what `where` says of each line.

    A line that is no episode is in it too, and marked. Without `contents` nothing is worked out
    about what was said, which takes half of the time.
    """
    try:
        import duckdb
    except ImportError:
        raise MissingExtra.of("curate", "Curating") from None

    # In memory, which is twice as fast; what does not fit goes to the folder.
    with duckdb.connect() as database, LineIndex(files) as places:
        database.execute("SET enable_progress_bar = false")  # It would draw among the results.
        database.execute(f"SET memory_limit = {quote_sql(memory_limit)}")
        database.execute(f"SET temp_directory = {quote_sql(str(folder))}")
        if where is not None:
            validate_where(database, where)
        create_episodes_table(database, files, where, contents)
        catalog = Catalog(database, files, places)
        catalog.exclude(UNREADABLE, "NOT readable")
        yield catalog
