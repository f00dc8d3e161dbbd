"""Random access to the lines of large files, without loading the files into memory.

Lines are counted from 0 without blank ones, as DuckDB counts them.
"""

from __future__ import annotations

import os
from array import array
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from functools import cached_property
from itertools import compress, count, filterfalse
from pathlib import Path
from typing import BinaryIO, NamedTuple, Self

from ludus.errors import RunError

_READ_BLOCK_BYTES = 1 << 18


class LineIndex:
    """The lines of several files. Files are opened and indexed at the first access.

    Lines are returned without surrounding whitespace, of which DuckDB skips more kinds than JSON
    allows.
    """

    def __init__(self, files: Sequence[Path]) -> None:
        self._files = files
        self._exit_stack = ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._exit_stack.close()

    def read_line(self, file: int, at: int) -> bytes:
        """Read any line."""
        starts = self._offsets[file].starts
        if at >= len(starts) - 1:
            raise self._truncated_error(file)
        descriptor = self._sources[file].fileno()
        return os.pread(descriptor, starts[at + 1] - starts[at], starts[at]).strip()

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
    def _sources(self) -> list[BinaryIO]:
        sources: list[BinaryIO] = []
        for at, file in enumerate(self._files):
            try:
                sources.append(self._exit_stack.enter_context(file.open("rb", buffering=0)))
            except OSError as error:
                raise self._read_error(at, error) from error
        return sources

    @cached_property
    def _offsets(self) -> list[_LineOffsets]:
        offsets = []
        for file in self._files:
            starts, numbers, position = array("q"), array("q"), 0
            with file.open("rb", buffering=_READ_BLOCK_BYTES) as source:
                for number, line in enumerate(source, 1):
                    if not line.isspace():
                        starts.append(position)
                        numbers.append(number)
                    position += len(line)
            starts.append(position)
            offsets.append(_LineOffsets(starts, numbers))
        return offsets

    def _truncated_error(self, file: int) -> RunError:
        return RunError(f"{self._files[file]} was truncated while it was read. Try again.")

    def _read_error(self, file: int, error: OSError) -> RunError:
        return RunError(f"Cannot read {self._files[file]}: {error.strerror or error}.")


class _LineOffsets(NamedTuple):
    """The non-blank lines of a file. A blank line is trailing whitespace of the one before it."""

    starts: array[int]
    """Offset of each line, and at the end the size of the file."""
    numbers: array[int]
