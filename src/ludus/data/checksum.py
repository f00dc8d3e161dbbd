"""Whether an append-only file still begins with the bytes that were written to it."""

from __future__ import annotations

import zlib
from pathlib import Path
from typing import NamedTuple, Self

from ludus.errors import RunError

_BLOCK = 1 << 20


class Checksum(NamedTuple):
    """The length of a file's beginning, and the CRC-32 of it."""

    size: int = 0
    crc32: int = 0

    def extend(self, data: bytes | memoryview) -> Self:
        """The checksum after `data` was appended."""
        return type(self)(self.size + len(data), zlib.crc32(data, self.crc32))


class Verified(NamedTuple):
    """What one pass over a file has found."""

    lines: int
    """How many lines at its beginning are as they were written."""
    checksum: Checksum
    """Of the whole file."""


def verify(path: Path, known: Checksum | None) -> Verified:
    """Compare the beginning of a file with a checksum of it from earlier.

    All or nothing: where a single byte has changed, no line is verified. What was appended after
    the checksum was taken is not verified either.
    """
    known = known or Checksum()
    checksum, lines, unchanged = Checksum(), 0, False
    block = bytearray(_BLOCK)
    view = memoryview(block)
    try:
        with path.open("rb", buffering=0) as file:
            # A block that reaches over the end of what is known is read in two parts.
            while size := file.readinto(view[: max(0, known.size - checksum.size) or _BLOCK]):
                if checksum.size < known.size:
                    lines += block.count(b"\n", 0, size)
                checksum = checksum.extend(view[:size])
                unchanged = unchanged or checksum == known
    except OSError as error:
        raise RunError(f"{path} cannot be read: {error.strerror or error}.") from error
    return Verified(lines if unchanged else 0, checksum)
