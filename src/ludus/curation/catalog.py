"""The episodes of some runs as one DuckDB table, with the reason why each was excluded.

The table holds the fields that filters use, never the messages. Each filter sets the reason of the
rows that it excludes, and only of rows without one, so that every episode is either kept or counted
under exactly one reason.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import accumulate, islice, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from ludus.curation.line_index import LineIndex
from ludus.curation.load_episodes import load_episodes
from ludus.data.estimates import MeanEstimate, query_mean_reward
from ludus.data.locked_database import DUCKDB_MEMORY_LIMIT

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

UNREADABLE = "unreadable"
_CHUNK_ROWS = 10_000


@dataclass(frozen=True, slots=True)
class FilterStep:
    """How many episodes a filter excluded."""

    reason: str
    """One or two words, the same in the terminal, the card and `curation.json`."""
    removed: int
    remaining: int
    detail: str = ""
    """The condition, such as `reward >= 0.8`."""


class Catalog:
    """A table with one row per line of the files. `reason` is null while an episode is kept."""

    def __init__(
        self, database: DuckDBPyConnection, files: Sequence[Path], line_index: LineIndex
    ) -> None:
        self.files = files
        self.steps: list[FilterStep] = []
        self._database = database
        self._line_index = line_index
        counts = dict(self.sql("SELECT file, count(*) FROM episodes GROUP BY file"))
        # The row of each file's first line, and at the end the number of rows.
        self._row_offsets = list(
            accumulate((counts.get(at, 0) for at in range(len(files))), initial=0)
        )

    @classmethod
    @contextmanager
    def open(
        cls,
        files: Sequence[Path],
        folder: Path,
        *,
        where: str | None = None,
        contents: bool = True,
        labels: bool = False,
        memory_limit: str = DUCKDB_MEMORY_LIMIT,
    ) -> Iterator[Self]:
        """Open a catalog of the files that spills to `folder`; evaluate `where` for each line.

        Unreadable lines are part of the catalog, and excluded. Without `contents` messages are not
        hashed, which saves half of the time. With `labels` the replies of tutors are trained on.
        """
        # In memory, which is twice as fast as a database file; what does not fit is spilled.
        with (
            load_episodes(
                files, folder, where, contents=contents, labels=labels, memory_limit=memory_limit
            ) as database,
            LineIndex(files) as line_index,
        ):
            catalog = cls(database, files, line_index)
            catalog.exclude(UNREADABLE, "NOT readable")
            yield catalog

    def read_line(self, row: int) -> bytes:
        """Return the line of a row. For many rows, `read_lines` is faster."""
        file = bisect_right(self._row_offsets, row) - 1
        return self._line_index.read_line(file, row - self._row_offsets[file])

    def read_lines(self, query: str, *parameters: Any) -> Iterator[tuple[int, int, bytes]]:
        """Yield row, mark and line for a query that returns rows and marks (1 to 255).

        In the order of the files, whatever the order of the query: each file is read once.
        """
        marks = bytearray(self._row_offsets[-1])
        for row, mark in self.stream(query, *parameters):
            marks[row] = mark
        for file, (first, end) in enumerate(pairwise(self._row_offsets)):
            for at, mark, line in self._line_index.read_marked(file, bytes(marks[first:end])):
                yield first + at, mark, line

    def location(self, row: int) -> tuple[Path, int]:
        """Return the file and the line number of a row, counted from 1."""
        file = bisect_right(self._row_offsets, row) - 1
        return self.files[file], self._line_index.line_number(file, row - self._row_offsets[file])

    def sql(self, query: str, *parameters: Any) -> list[tuple[Any, ...]]:
        return self._database.execute(query, parameters).fetchall()

    def stream(self, query: str, *parameters: Any) -> Iterator[tuple[Any, ...]]:
        """Yield the rows of a query, fetched in chunks on a separate cursor."""
        with self._database.cursor() as cursor:
            cursor.execute(query, parameters)
            while rows := cursor.fetchmany(_CHUNK_ROWS):
                yield from rows

    def create_table(
        self, name: str, columns: Mapping[str, str], rows: Iterable[Sequence[Any]]
    ) -> None:
        """Create a table from rows that were computed in Python."""
        types = ", ".join(f"{column} {sql_type}" for column, sql_type in columns.items())
        lists = ", ".join(f"unnest(?::{sql_type}[])" for sql_type in columns.values())
        self.sql(f"CREATE OR REPLACE TABLE {name} ({types})")
        remaining = iter(rows)
        while chunk := list(islice(remaining, _CHUNK_ROWS)):
            self.sql(f"INSERT INTO {name} SELECT {lists}", *map(list, zip(*chunk, strict=True)))

    def exclude(self, reason: str, condition: str, *parameters: Any, detail: str = "") -> int:
        """Exclude the kept rows that meet the condition, and return how many they are."""
        before = self.kept
        self.sql(
            f"UPDATE episodes SET reason = ? WHERE reason IS NULL AND ({condition})",
            reason,
            *parameters,
        )
        after = self.kept
        self.steps.append(FilterStep(reason, before - after, after, detail))
        return before - after

    @property
    def total(self) -> int:
        return int(self.sql("SELECT count(*) FROM episodes")[0][0])

    @property
    def kept(self) -> int:
        return int(self.sql("SELECT count(*) FROM episodes WHERE reason IS NULL")[0][0])

    @property
    def tutored(self) -> int:
        """How many of the kept episodes are trained on by the replies of a tutor."""
        query = "SELECT count(*) FROM episodes WHERE reason IS NULL AND tutored"
        return int(self.sql(query)[0][0])

    @property
    def mean_reward(self) -> MeanEstimate | None:
        """The mean reward of the kept episodes."""
        kept = "(SELECT * FROM episodes WHERE reason IS NULL)"
        return query_mean_reward(self._database, kept, task="task")

    @property
    def excluded_counts(self) -> dict[str, int]:
        """Number of excluded episodes by reason, in the order of the filters."""
        counts = dict(
            self.sql("SELECT reason, count(*) FROM episodes WHERE reason NOT NULL GROUP BY 1")
        )
        order = dict.fromkeys([step.reason for step in self.steps])
        return {reason: counts[reason] for reason in order if reason in counts}
