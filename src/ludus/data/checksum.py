"""Hashes: checksums of files, and a hash of text that is the same in every process."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple, Self
from zlib import crc32

from ludus.errors import RunError

_BLOCK_BYTES = 1 << 20


class Checksum(NamedTuple):
    """Length and CRC-32 of the beginning of a file."""

    size: int = 0
    crc32: int = 0

    @classmethod
    def of_file(cls, path: Path) -> Self:
        """The checksum of a whole file."""
        size = crc = 0
        block = bytearray(_BLOCK_BYTES)
        try:
            with path.open("rb", buffering=0) as file:
                while read := file.readinto(block):
                    crc = crc32(memoryview(block)[:read], crc)
                    size += read
        except OSError as error:
            raise RunError(f"{path} cannot be read: {error.strerror or error}.") from error
        return cls(size, crc)

    @classmethod
    def from_summary(cls, summary: Mapping[str, Any]) -> Self | None:
        """The checksum of the journal in a run's summary; None if there is none."""
        size, crc32 = summary.get("bytes"), summary.get("crc32")
        return cls(size, crc32) if isinstance(size, int) and isinstance(crc32, int) else None

    def extend(self, data: bytes) -> Self:
        """The checksum after `data` was appended."""
        return type(self)(self.size + len(data), crc32(data, self.crc32))


def file_digest(*files: Path) -> str:
    """The SHA-256 of a file, as `sha256sum` prints it, or of several files in a row."""
    digest = sha256()
    for path in files:
        with path.open("rb") as file:
            while block := file.read(_BLOCK_BYTES):
                digest.update(block)
    return digest.hexdigest()


def stable_hash(text: str) -> int:
    """A 64-bit hash that is the same in every process, unlike Python's own."""
    data = text.encode("utf-8", "surrogatepass")
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "big")
