"""A pseudo-terminal, and what a person sees on it."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import sys
import termios
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from threading import Thread
from unittest.mock import patch

from ludus.cli.display.console import console

_TOKENS = re.compile(r"\x1b\[(\?)?([\d;]*)([A-Za-z])|([\r\n])|([^\x1b\r\n]+)")


def open_terminal(columns: int = 160) -> tuple[int, int]:
    """Both ends: what is read from the first was written to the second."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 30, columns, 0, 0))
    return ours, theirs


@contextmanager
def stderr_on_a_terminal(columns: int = 160) -> Iterator[bytearray]:
    """Until the end, stderr of this process is a terminal; yields what is written to it."""
    ours, theirs = open_terminal(columns)
    drawn = bytearray()

    def read() -> None:
        # Linux says so when the other side is closed.
        with suppress(OSError):
            while chunk := os.read(ours, 65536):
                drawn.extend(chunk)

    reader = Thread(target=read)
    reader.start()
    before = sys.stderr
    # A console looks for the width at the process's own streams, and only once.
    sized = patch.dict(os.environ, {"COLUMNS": str(columns), "TERM": "xterm-256color"})
    console.cache_clear()
    try:
        with sized, os.fdopen(theirs, "w", encoding="utf-8") as sys.stderr:
            yield drawn
    finally:
        sys.stderr = before
        console.cache_clear()
        reader.join()
        os.close(ours)


def screens(drawn: str) -> Iterator[list[str]]:
    """The lines on the screen, each time that something was written."""
    lines, row, column = [""], 0, 0
    for private, number, letter, control, text in _TOKENS.findall(drawn):
        if control == "\n":
            row += 1
            lines += [""] * (row + 1 - len(lines))
        elif control == "\r":
            column = 0
        elif text:
            line = lines[row].ljust(column)
            lines[row] = line[:column] + text + line[column + len(text) :]
            column += len(text)
            yield [line.rstrip() for line in lines]
        elif letter == "A":
            row -= int(number or 1)
            assert row >= 0, "it went above its own lines"
        elif letter == "K":
            lines[row] = ""
        else:
            assert letter == "m" or private, f"unknown: {number}{letter}"
    yield [line.rstrip() for line in lines]
