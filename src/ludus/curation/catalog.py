"""The episodes of some runs as one DuckDB table, with the reason why each was excluded.

The table holds the fields that filters use, never the messages. Each filter sets the reason of the
rows that it excludes, unless they have one already: every episode is either kept or counted under
exactly one reason.
"""

from __future__ import annotations

import os
from array import array
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, compress, count, filterfalse, islice, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple, Self

from ludus.curation.load_episodes import load_episodes
from ludus.data.interval_estimates import MeanEstimate, query_mean_reward
from ludus.errors import RunError

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

UNREADABLE = "unreadable"
_CHUNK_ROWS = 10_000
_READ_BLOCK_BYTES = 1 << 18


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
        self, database: DuckDBPyConnection, files: Sequence[Path], line_index: CatalogLines
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
    ) -> Iterator[Self]:
        """Open a catalog of the files that spills to `folder`; evaluate `where` for each line.

        Unreadable lines are part of the catalog, and excluded. Without `contents` messages are not
        hashed, which saves half of the time. With `labels` the replies of tutors are trained on.
        """
        # In memory, which is twice as fast as a database file; what does not fit is spilled.
        with (
            load_episodes(files, folder, where, contents=contents, labels=labels) as database,
            CatalogLines(files) as line_index,
        ):
            catalog = cls(database, files, line_index)
            catalog.exclude(UNREADABLE, "NOT readable")
            yield catalog

    def read_line(self, row: int) -> bytes:
        """Return the line of a row. For many rows, `read_lines` is faster."""
        file = bisect_right(self._row_offsets, row) - 1
        return self._line_index.read_line(file, row - self._row_offsets[file])

    def read_lines(self, query: str, *parameters: object) -> Iterator[tuple[int, int, bytes]]:
        """Yield row, mark and line for a query that returns rows and marks (1 to 255).

        In the order of the files, not of the query: each file is read once.
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

    def sql(self, query: str, *parameters: object) -> list[tuple[Any, ...]]:
        return self._database.execute(query, parameters).fetchall()

    def stream(self, query: str, *parameters: object) -> Iterator[tuple[Any, ...]]:
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

    def exclude(self, reason: str, condition: str, *parameters: object, detail: str = "") -> None:
        """Exclude the kept rows that meet the condition."""
        before = self.kept
        self.sql(
            f"UPDATE episodes SET reason = ? WHERE reason IS NULL AND ({condition})",
            reason,
            *parameters,
        )
        after = self.kept
        self.steps.append(FilterStep(reason, before - after, after, detail))

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


class CatalogLines:
    """The lines of several files, read without loading the files into memory.

    Files are opened and indexed at the first access. Lines are counted from 0 without blank ones,
    as DuckDB counts them, and are returned without surrounding whitespace, of which DuckDB skips
    more kinds than JSON allows.
    """

    def __init__(self, files: Sequence[Path]) -> None:
        self._files = files
        self._exit_stack = ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._exit_stack.close()

    def read_line(self, file: int, at: int) -> bytes:
        """Read a line of a file by its number."""
        source, starts, _ = self._offsets[file]
        if at >= len(starts) - 1:
            raise self._truncated_error(file)
        return os.pread(source.fileno(), starts[at + 1] - starts[at], starts[at]).strip()

    def count_lines(self, file: int) -> int:
        return len(self._offsets[file].starts) - 1

    def line_number(self, file: int, at: int) -> int:
        """Return the line number as editors count it: from 1, with blank lines."""
        return self._offsets[file].numbers[at]

    def read_marked(self, file: int, marks: bytes) -> Iterator[tuple[int, int, bytes]]:
        """Yield index, mark and text of the lines with a mark other than 0, in one pass."""
        if not any(marks):
            return
        try:
            with self._files[file].open("rb", buffering=_READ_BLOCK_BYTES) as source:
                lines = compress(filterfalse(bytes.isspace, source), marks)
                yield from zip(compress(count(), marks), compress(marks, marks), lines, strict=True)
        except ValueError:
            raise self._truncated_error(file) from None
        except OSError as error:
            raise self._read_error(file, error) from error

    @cached_property
    def _offsets(self) -> list[_LineOffsets]:
        offsets = []
        for at, file in enumerate(self._files):
            starts, numbers, position = array("q"), array("q"), 0
            try:
                source = self._exit_stack.enter_context(file.open("rb", _READ_BLOCK_BYTES))
                for number, line in enumerate(source, 1):
                    if not line.isspace():
                        starts.append(position)
                        numbers.append(number)
                    position += len(line)
            except OSError as error:
                raise self._read_error(at, error) from error
            starts.append(position)
            offsets.append(_LineOffsets(source, starts, numbers))
        return offsets

    def _truncated_error(self, file: int) -> RunError:
        return RunError(f"{self._files[file]} was truncated while it was read. Try again.")

    def _read_error(self, file: int, error: OSError) -> RunError:
        return RunError(f"Cannot read {self._files[file]}: {error.strerror or error}.")


class _LineOffsets(NamedTuple):
    """The non-blank lines of a file. A blank line is trailing whitespace of the one before it."""

    source: BinaryIO
    starts: array[int]
    """Offset of each line, and at the end the size of the file."""
    numbers: array[int]
