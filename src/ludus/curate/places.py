"""Single lines of large files by their place, without holding the files in memory."""

from __future__ import annotations

import os
from array import array
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import NamedTuple

from ludus.errors import RunError

_BLOCK = 1 << 18
_BLANK = b" \t\r\n\v\f"
"""What is white space to DuckDB, which passes over lines of nothing else."""
_SPACE, _NEWLINE = 32, 10


class Places:
    """The lines of several files, by file and number, from 0. Blank ones do not count.

    Eight bytes a line are held: where it begins. A thread finds that out, for whoever asks first
    must wait for DuckDB anyway.
    """

    def __init__(self, files: Sequence[Path]) -> None:
        self._files = files
        self._thread = ThreadPoolExecutor(1, "places")
        self._found: list[Future[_Lines]] = []
        self._open: list[int] = []

    def __enter__(self) -> Places:
        try:
            for file in self._files:
                self._open.append(os.open(file, os.O_RDONLY))
                self._found.append(self._thread.submit(_lines, file))
        except OSError as error:
            self._close()
            raise RunError(f"{file} cannot be read: {error.strerror or error}.") from error
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._close()

    def _close(self) -> None:
        self._thread.shutdown(cancel_futures=True)
        while self._open:
            os.close(self._open.pop())

    @cached_property
    def _lines(self) -> list[_Lines]:
        return [found.result() for found in self._found]

    def line(self, file: int, number: int) -> bytes:
        starts = self._lines[file].starts
        if number >= len(starts) - 1:
            raise RunError(f"{self._files[file]} became shorter while it was read. Try again.")
        begin = starts[number]
        return os.pread(self._open[file], starts[number + 1] - begin, begin)

    def number(self, file: int, at: int) -> int:
        """What an editor calls the line: blank ones count, and the first is 1."""
        numbers = self._lines[file].numbers
        return at + 1 if numbers is None else numbers[at]


class _Lines(NamedTuple):
    """The lines of a file that are not blank."""

    starts: array[int]
    """Where each begins, and at last where the file ends."""
    numbers: array[int] | None = None
    """What an editor calls them, where there are blank lines between them."""


def _lines(file: Path) -> _Lines:
    """Nearly always no line is blank, and then nothing but newlines is looked for."""
    starts, position, begins = array("q", [0]), 0, True
    block = bytearray(_BLOCK)
    note, find = starts.append, block.find
    with file.open("rb", buffering=0) as source:
        while size := source.readinto(block):
            if begins and block[0] <= _SPACE:
                return _with_blanks(file)
            at = find(_NEWLINE, 0, size)
            begins = False
            while at >= 0:
                note(position + at + 1)
                at += 1
                begins = at == size
                if not begins and block[at] <= _SPACE:
                    return _with_blanks(file)
                at = find(_NEWLINE, at, size)
            position += size
    if starts[-1] != position:
        starts.append(position)
    return _Lines(starts)


def _with_blanks(file: Path) -> _Lines:
    """The same, where some line is blank or begins with white space.

    A blank line is read as a part of the line before it: white space after JSON.
    """
    starts, numbers, position = array("q"), array("q"), 0
    with file.open("rb") as source:
        for number, line in enumerate(source, 1):
            if line.strip(_BLANK):
                starts.append(position)
                numbers.append(number)
            position += len(line)
    starts.append(position)
    return _Lines(starts, numbers)
