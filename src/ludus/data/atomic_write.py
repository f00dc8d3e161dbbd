"""A folder that is there whole, or not at all.

Files are written below a hidden folder and moved into place at the end. Whoever stops the work, by
Ctrl-C or by pulling the plug, leaves no half of a file that looks like a whole one.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from ludus.errors import RunError


@contextmanager
def atomic_dir(out: Path, prefix: str, *, marker: str, owned: Collection[str]) -> Iterator[Path]:
    """A hidden folder in `out`; what is in it when the work is done goes to `out`, `last` at last.

    Whatever else of `ours` is in `out` goes away then. Folders that were made for it go again where
    nothing came into them; one that was there stays.
    """
    made = [folder for folder in (out, *out.parents) if not folder.exists()]
    draft = None
    try:
        out.mkdir(parents=True, exist_ok=True)
        _remove_stale_drafts(out, prefix)
        draft = Path(tempfile.mkdtemp(prefix=f"{prefix}{os.getpid()}-", dir=out))
        yield draft
        _publish(draft, out, marker, owned)
    except OSError as error:
        raise RunError(f"{out} cannot be written: {error.strerror or error}.") from error
    finally:
        if draft is not None:
            shutil.rmtree(draft, ignore_errors=True)
        with suppress(OSError):
            for folder in made:
                folder.rmdir()


def existing_files(out: Path, prefix: str) -> list[str]:
    """What is in the folder and is no draft, by name."""
    return sorted(file.name for file in out.iterdir() if not file.name.startswith(prefix))


def _remove_stale_drafts(out: Path, prefix: str) -> None:
    """Drafts of processes that were killed. What is being written by others is theirs."""
    for left_over in out.glob(f"{prefix}*"):
        process = left_over.name.removeprefix(prefix).partition("-")[0]
        if not (process.isdecimal() and _is_running(int(process))):
            shutil.rmtree(left_over, ignore_errors=True)


def _is_running(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:
        pass  # It is somebody else's.
    return process != os.getpid()


def _publish(draft: Path, out: Path, last: str, ours: Collection[str]) -> None:
    # Without its last file the folder is nothing yet: so that goes first, and comes last.
    for name in sorted(ours, key=lambda name: name != last):
        old = out / name
        if old.is_dir():
            shutil.rmtree(old)
        else:
            old.unlink(missing_ok=True)
    for file in sorted(draft.iterdir(), key=lambda file: file.name == last):
        if file.name in ours:
            file.replace(out / file.name)


def write_atomically(file: Path, text: str) -> None:
    """Write a file whole, or not at all."""
    draft = file.with_name(f".{file.name}.{os.getpid()}.draft")
    try:
        with draft.open("w", encoding="utf-8") as to:
            to.write(text)
            to.flush()
            os.fsync(to.fileno())
        draft.replace(file)
    except OSError as error:
        raise RunError(f"{file} cannot be written: {error.strerror or error}.") from error
