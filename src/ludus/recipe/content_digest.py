"""Digests of files and folders, to notice that an input has changed."""

from __future__ import annotations

import os
from collections.abc import Iterator
from hashlib import blake2b
from pathlib import Path

from ludus.errors import RunError

_SKIPPED_DIRS = ("checkpoints", "__pycache__", "earlier")
"""Folders whose content is not part of a result."""
_BLOCK_BYTES = 1 << 20
_DIGEST_BYTES = 8


def content_digest(path: Path) -> str:
    """A digest of a file, or of the names and contents of the files in a folder.

    Hidden files and checkpoints are left out. Empty for a path that does not exist.
    """
    if not path.exists():
        return ""
    digest = blake2b(digest_size=_DIGEST_BYTES)
    for file in _visible_files(path):
        digest.update(str(file.relative_to(path)).encode() + b"\0")
        try:
            with file.open("rb") as stream:
                while block := stream.read(_BLOCK_BYTES):
                    digest.update(block)
        except OSError as error:
            raise RunError(f"{file} cannot be read: {error.strerror or error}.") from error
    return digest.hexdigest()


def stat_digest(path: Path) -> str:
    """A digest of names, sizes and times: while it is the same, so are the contents."""
    if not path.exists():
        return ""
    digest = blake2b(digest_size=_DIGEST_BYTES)
    for file in _visible_files(path):
        status = file.stat()
        digest.update(
            f"{file.relative_to(path)}\0{status.st_size}\0{status.st_mtime_ns}\0".encode()
        )
    return digest.hexdigest()


def _visible_files(path: Path) -> Iterator[Path]:
    """The file itself, or those below a folder in the order of their names."""
    if path.is_file():
        yield path
        return
    for folder, names, file_names in os.walk(path):
        names[:] = sorted(
            name for name in names if name not in _SKIPPED_DIRS and not name.startswith(".")
        )
        for name in sorted(file_names):
            file = Path(folder, name)
            if not name.startswith(".") and file.is_file():
                yield file
