"""Locks against two processes that write the same file or folder.

They are `flock`s: the kernel releases them when the process ends, in whatever way.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from ludus.errors import RunError

LOCK_FILE = ".ludus.lock"
"""In a folder while it is locked; one that was left by a killed process locks nothing."""


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
    try:
        descriptor = _open_locked(out, file)
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


def _open_locked(out: Path, file: Path) -> int:
    """Open and lock the file, again if its holder has removed it in between."""
    while True:
        out.mkdir(parents=True, exist_ok=True)
        try:
            descriptor = os.open(file, os.O_RDWR | os.O_CREAT, 0o666)
        except FileNotFoundError:
            continue  # The folder stayed empty and was removed.
        try:
            lock_file(out, descriptor)
            if file.stat().st_ino == os.fstat(descriptor).st_ino:
                return descriptor
        except FileNotFoundError:
            pass
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)
