"""Growing files of episodes: where each line begins, and the lines that were appended.

A file is read once from its beginning and continued as it grows. One line can be read at any time
without the others.
"""

from __future__ import annotations

import os
import re
from array import array
from codecs import BOM_UTF8
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from ludus.data.episode_reader import ResumeIndex, parse_head
from ludus.data.json_files import MAX_LINE_BYTES, is_json_object, line_too_long
from ludus.errors import RunError

_TAIL_BYTES = 256
_IMAGE_MARK = b'"data:image/'
_IMAGE = re.compile(rb'"data:image/[^"]*"')


@dataclass(slots=True)
class EpisodeFile:
    """A file of episodes and its lines that are indexed so far. Blank lines are lines too."""

    number: int
    """Its place among the files of the index."""
    key: str
    """The key of its entry."""
    path: Path
    starts: array[int] = field(default_factory=lambda: array("q", [0]))
    """The offset of each indexed line, and of the next one."""
    unreadable: int = 0
    index: ResumeIndex = field(default_factory=ResumeIndex)
    """Which lines count, and their mean reward."""
    incomplete: int = 0
    """Bytes of an incomplete last line, which its writer has yet to end."""
    _tail: bytes = b""
    """The last bytes before `position`, by which a rewritten file is noticed."""

    @property
    def position(self) -> int:
        """Bytes that are indexed."""
        return self.starts[-1]

    @property
    def lines(self) -> int:
        return len(self.starts) - 1

    @property
    def size(self) -> int:
        try:
            return self.path.stat().st_size
        except OSError:
            return 0

    def was_rewritten(self) -> bool:
        """Whether the indexed part has changed, as when a training resumes from a checkpoint."""
        if self.size < self.position:
            return True
        return self._tail != self._read(self.position - len(self._tail), len(self._tail))

    def reset(self) -> None:
        """Forget all lines."""
        self.starts, self._tail, self.unreadable = array("q", [0]), b"", 0
        self.index = ResumeIndex()

    def count(self, number: int, line: bytes) -> float | None:
        """Count an appended line; returns the reward that counts, if it has one."""
        head = None
        if is_json_object(line):
            with suppress(RunError):  # A later version of the format.
                head = parse_head(line, self.path, number)
        return None if head is None else next(self.index.count([head]))

    def read_appended(self, max_bytes: int) -> Sequence[bytes]:
        """Read complete lines after the indexed ones; an incomplete last line is left for later."""
        if not self.position and self._read(0, len(BOM_UTF8)) == BOM_UTF8:
            self.starts[0] = len(BOM_UTF8)
        while True:
            block = self._read(self.position, max_bytes)
            end = block.rfind(b"\n") + 1
            if end or len(block) < max_bytes:
                self.incomplete = len(block) - end if len(block) < max_bytes else 0
                return block[:end].splitlines(keepends=True)
            if max_bytes > MAX_LINE_BYTES:
                raise line_too_long(self.path)
            max_bytes *= 2  # One line is longer than that.

    def add(self, lines: Sequence[bytes]) -> None:
        """Note that these lines, which `read_appended` returned, are indexed."""
        position = self.position
        for line in lines:
            position += len(line)
            self.starts.append(position)
        self._tail = lines[-1][-_TAIL_BYTES:]

    def read_line(self, line: int) -> bytes:
        """Read one line, counted from 0."""
        if not 0 <= line < self.lines:
            raise RunError(f"{self.key} has no episode in line {line}.")
        return self._read(self.starts[line], self.starts[line + 1] - self.starts[line])

    def _read(self, start: int, size: int) -> bytes:
        try:
            with self.path.open("rb", buffering=0) as file:
                return os.pread(file.fileno(), size, start)
        except FileNotFoundError:
            return b""
        except OSError as error:
            raise RunError(f"{self.path} cannot be read: {error.strerror or error}.") from error


def number_line(number: int, reward: float | None, line: bytes) -> bytes:
    """A line with its number and the reward that counts, and without the content of its images."""
    if line.isspace():
        return b"\n"
    if _IMAGE_MARK in line:
        line = _IMAGE.sub(b'"data:image/"', line)
    counted = b"null" if reward is None else repr(reward).encode()
    return b'{"_id":%d,"_reward":%b,' % (number, counted) + line.lstrip()[1:]
