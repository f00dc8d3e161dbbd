"""Lines of large files by their place, without holding the files in memory.

A line is counted from 0, and blank ones are not counted: so it is in DuckDB's tables, too.
"""

from __future__ import annotations

import os
from array import array
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from functools import cached_property
from itertools import compress, count, filterfalse
from pathlib import Path
from typing import NamedTuple, Self

from ludus.errors import RunError

_READ_BLOCK_BYTES = 1 << 18
_SPACE, _NEWLINE = 32, 10


class LineIndex:
    """The lines of several files. What is not asked for costs nothing.

    They come without the white space around them: not all that is passed over by DuckDB is white
    space to JSON.
    """

    def __init__(self, files: Sequence[Path]) -> None:
        self._files = files
        self._exit_stack = ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._exit_stack.close()

    def read_line(self, file: int, at: int) -> bytes:
        """Any line, whichever was asked for before it."""
        starts = self._offsets[file].starts
        if at >= len(starts) - 1:
            raise _truncated_error(self._files[file])
        begin = starts[at]
        return os.pread(self._descriptors[file], starts[at + 1] - begin, begin).strip()

    def line_number(self, file: int, at: int) -> int:
        """What an editor calls the line: blank ones count, and the first is 1."""
        numbers = self._offsets[file].numbers
        return at + 1 if numbers is None else numbers[at]

    def read_marked(self, file: int, marks: bytes) -> Iterator[tuple[int, int, bytes]]:
        """Place, mark and text of the lines whose mark is not 0, in one pass over the file."""
        if not any(marks):
            return
        try:
            with self._files[file].open("rb", buffering=_READ_BLOCK_BYTES) as source:
                lines = compress(filterfalse(bytes.isspace, source), marks)
                yield from zip(compress(count(), marks), compress(marks, marks), lines, strict=True)
        except ValueError:
            raise _truncated_error(self._files[file]) from None
        except OSError as error:
            raise _read_error(self._files[file], error) from error

    @cached_property
    def _descriptors(self) -> list[int]:
        return [self._open_file(file) for file in self._files]

    @cached_property
    def _offsets(self) -> list[_LineOffsets]:
        return [_index_lines(file) for file in self._files]

    def _open_file(self, file: Path) -> int:
        try:
            source = os.open(file, os.O_RDONLY)
        except OSError as error:
            raise _read_error(file, error) from error
        self._exit_stack.callback(os.close, source)
        return source


class _LineOffsets(NamedTuple):
    """The lines of a file that are not blank: eight bytes for each."""

    starts: array[int]
    """Where each begins, and at last where the file ends."""
    numbers: array[int] | None = None
    """What an editor calls them, where there are blank lines between them."""


def _index_lines(file: Path) -> _LineOffsets:
    """Nearly always no line is blank, and then nothing but newlines is looked for."""
    starts, position, begins = array("q", [0]), 0, True
    block = bytearray(_READ_BLOCK_BYTES)
    note, find = starts.append, block.find
    with file.open("rb", buffering=0) as source:
        while size := source.readinto(block):
            if begins and block[0] <= _SPACE:
                return _index_lines_with_blanks(file)
            at = find(_NEWLINE, 0, size)
            begins = False
            while at >= 0:
                note(position + at + 1)
                at += 1
                begins = at == size
                if not begins and block[at] <= _SPACE:
                    return _index_lines_with_blanks(file)
                at = find(_NEWLINE, at, size)
            position += size
    if starts[-1] != position:
        starts.append(position)
    return _LineOffsets(starts)


def _index_lines_with_blanks(file: Path) -> _LineOffsets:
    """The same, where some line is blank or begins with white space.

    A blank line is read as a part of the line before it: white space at its end.
    """
    starts, numbers, position = array("q"), array("q"), 0
    with file.open("rb") as source:
        for number, line in enumerate(source, 1):
            if not line.isspace():
                starts.append(position)
                numbers.append(number)
            position += len(line)
    starts.append(position)
    return _LineOffsets(starts, numbers)


def _truncated_error(file: Path) -> RunError:
    return RunError(f"{file} became shorter while it was read. Try again.")


def _read_error(file: Path, error: OSError) -> RunError:
    return RunError(f"{file} cannot be read: {error.strerror or error}.")
