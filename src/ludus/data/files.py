"""Files and folders that are complete or not there at all, their locks, and their checksums.

Everything is written under a hidden name first and renamed at the end. A process that is
interrupted or killed leaves no partial file that looks complete. Locks are `flock`s: the kernel
releases them when the process ends, in whatever way.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
import threading
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple, Self
from zlib import crc32

from ludus.errors import RunError

LOCK_FILE = ".ludus.lock"
"""In a folder while it is locked; a file left by a killed process locks nothing."""


def lock_file(path: Path, descriptor: int) -> None:
    """Lock an open file until it is closed. Raises `RunError` if another process holds it."""
    # Imported here, so that the module can be imported on Windows, which has no fcntl.
    import fcntl

    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise RunError(
            f"Another process is writing {path}. Wait until it has ended, or use another `out`."
        ) from error


@contextmanager
def lock_dir(out: Path) -> Iterator[None]:
    """Create a folder and keep other processes out of it; remove it again if it stays empty."""
    if out.exists() and not out.is_dir():
        raise RunError(f"{out} is a file, not a folder. Use another `out`.")
    created = [folder for folder in (out, *out.parents) if not folder.exists()]
    file = out / LOCK_FILE
    descriptor = None
    try:
        while descriptor is None:
            out.mkdir(parents=True, exist_ok=True)
            # The holder removes the file and perhaps the folder: then another try is made.
            with suppress(FileNotFoundError):
                opened = os.open(file, os.O_RDWR | os.O_CREAT, 0o666)
                try:
                    lock_file(out, opened)
                    if file.stat().st_ino == os.fstat(opened).st_ino:
                        descriptor = opened
                finally:
                    if descriptor is None:
                        os.close(opened)
    except OSError as error:
        raise RunError(f"{out} cannot be written: {error.strerror or error}.") from error
    try:
        yield
    finally:
        file.unlink(missing_ok=True)
        os.close(descriptor)
        with suppress(OSError):
            for folder in created:
                folder.rmdir()


DRAFT_SUFFIX = ".draft"
"""Ending of files that are being written."""


def _draft_of(path: Path) -> Path:
    """Of this thread: others may write the same file."""
    return path.with_name(f".{path.name}.{os.getpid()}-{threading.get_ident()}{DRAFT_SUFFIX}")


@contextmanager
def atomic_file(path: Path) -> Iterator[Path]:
    """Yield a draft to write to, and rename it to `path` at the end of the block.

    If the block raises, the draft is removed and `path` stays as it was. An `OSError` is raised
    as `RunError`.
    """
    draft = _draft_of(path)
    try:
        yield draft
        fsync_path(draft)
        draft.replace(path)
        fsync_path(path.parent)
    except OSError as error:
        raise RunError(f"{path} cannot be written: {error.strerror or error}.") from error
    finally:
        with suppress(OSError):
            draft.unlink(missing_ok=True)


def write_atomically(path: Path, text: str) -> None:
    """Write a text file, completely or not at all."""
    with atomic_file(path) as draft:
        draft.write_text(text, encoding="utf-8")


def create_atomically(path: Path, text: str) -> bool:
    """Create a text file, completely or not at all; False if it exists already.

    Of several processes that try at the same time, one succeeds: unlike a rename, a link never
    replaces a file.
    """
    draft = _draft_of(path)
    try:
        draft.write_text(text, encoding="utf-8")
        fsync_path(draft)
        os.link(draft, path)
    except FileExistsError:
        return False
    finally:
        draft.unlink(missing_ok=True)
    return True


def fsync_path(path: Path) -> None:
    """Wait until the content of a file, or the entries of a folder, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def atomic_dir(out: Path, prefix: str, *, marker: str, owned: Collection[str]) -> Iterator[Path]:
    """Yield a hidden folder in `out`, and move the files in it to `out` at the end of the block.

    `out` is locked by the caller, so that all drafts in it were left by killed processes; they are
    removed. `owned` are the names that may be replaced or removed in `out`. The file `marker` marks
    the folder as complete: it is removed first and moved last.
    """
    draft = None
    try:
        for left in out.glob(f"{prefix}*"):
            shutil.rmtree(left, ignore_errors=True)
        draft = Path(tempfile.mkdtemp(prefix=prefix, dir=out))
        yield draft
        for name in sorted(owned, key=lambda name: name != marker):
            old = out / name
            if old.is_dir():
                shutil.rmtree(old)
            else:
                old.unlink(missing_ok=True)
        for file in sorted(draft.iterdir(), key=lambda file: file.name == marker):
            if file.name in owned:
                file.replace(out / file.name)
    except OSError as error:
        raise RunError(f"{out} cannot be written: {error.strerror or error}.") from error
    finally:
        if draft is not None:
            shutil.rmtree(draft, ignore_errors=True)


def existing_files(out: Path, prefix: str) -> list[str]:
    """The names in a folder, except for drafts and its lock."""
    names = (file.name for file in out.iterdir())
    return sorted(name for name in names if not name.startswith(prefix) and name != LOCK_FILE)


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
    def from_summary(cls, summary: Mapping[str, object]) -> Self | None:
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
            hashlib.file_digest(file, lambda: digest)
    return digest.hexdigest()


def stable_hash(text: str) -> int:
    """A 64-bit hash that is the same in every process, unlike Python's own."""
    data = text.encode("utf-8", "surrogatepass")
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "big")
