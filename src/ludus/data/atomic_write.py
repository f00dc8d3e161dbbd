"""Atomic writes: a file or a folder is complete, or not there at all.

Everything is written under a hidden name first and renamed at the end. A process that is
interrupted or killed leaves no partial file that looks complete.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import threading
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from ludus.data.write_lock import LOCK_FILE
from ludus.errors import RunError

DRAFT_SUFFIX = ".draft"
"""Ending of files that are being written."""


def _draft_of(path: Path) -> Path:
    """Of this thread: others may write the same file."""
    return path.with_name(f".{path.name}.{os.getpid()}-{threading.get_ident()}{DRAFT_SUFFIX}")


@contextmanager
def atomic_file(path: Path) -> Iterator[Path]:
    """Yield a draft to write to, and rename it to `path` at the end of the block.

    Where the block raises, the draft is removed and `path` stays as it was. An `OSError` is raised
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
    """Create a text file, completely or not at all; False where it exists already.

    Of several processes that try at the same time, one succeeds: unlike a rename, a link never
    replaces a file.
    """
    draft = _draft_of(path)
    try:
        draft.write_text(text, encoding="utf-8")
        fsync_path(draft)
        try:
            os.link(draft, path)
        except FileExistsError:
            return False
        except OSError:
            # The file system has no hard links, so that the check and the rename can race.
            if path.exists():
                return False
            draft.replace(path)
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

    `out` is locked by the caller, so that all drafts in it are those of killed processes; they are
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
