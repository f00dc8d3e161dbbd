"""`episodes.jsonl`: the append-only file of a run, for one writer at a time.

Nothing in it is ever overwritten or deleted. A killed process loses nothing that was appended; a
machine that loses power loses no more than the last moments. What a line says is
`ludus.data.lines`' business.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from threading import Event, Lock, Thread
from types import TracebackType
from typing import Self

from pydantic_core import from_json

from ludus.errors import RunError

_BLOCK = 64 << 10
_CLOSED = -1


class Journal:
    """A file of lines that is open for appending. `Journal.open` gives one.

    Every line is handed to the system at once, so it outlives the process. Writing it to the disk
    takes milliseconds: a thread does so for all that came in the meantime.
    """

    def __init__(
        self,
        path: Path,
        descriptor: int,
        *,
        repaired: str | None = None,
        sync_every: float = 0.25,
        fsync: Callable[[int], None] = os.fsync,
    ) -> None:
        self.path = path
        self.repaired = repaired
        """What was wrong with the last line when the file was opened, in words for the user."""
        self._descriptor = descriptor
        self._sync_every = sync_every
        self._fsync = fsync
        self._end = os.fstat(descriptor).st_size
        self._appended = self._synced = 0
        self._refusal: str | None = None
        self._news, self._closing, self._syncing = Event(), Event(), Lock()
        self._thread = Thread(target=self._keep_synced, name=f"sync {path.name}", daemon=True)
        self._thread.start()

    @classmethod
    def open(
        cls, path: Path, *, sync_every: float = 0.25, fsync: Callable[[int], None] = os.fsync
    ) -> Journal:
        """Open or create the file, lock it, and repair its last line if a writer was cut off.

        The lock is the system's: it goes when its holder does, however that ended.
        """
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o666)
            try:
                repaired = _made_ready(path, descriptor)
            except BaseException:
                os.close(descriptor)
                raise
        except OSError as error:
            raise _unwritable(path, error) from error
        return cls(path, descriptor, repaired=repaired, sync_every=sync_every, fsync=fsync)

    def append(self, line: bytes) -> None:
        """Append one line, with the newline that ends it.

        All of it is in the file afterwards; or, with an error, nothing of it.
        """
        if self._refusal:
            raise RunError(self._refusal)
        if line.find(b"\n") != len(line) - 1 or not line:
            raise ValueError("A line ends with a newline, and has no other.")
        try:
            self._write(line)
        except BaseException as error:
            self._take_back(self._end)
            if isinstance(error, OSError):
                raise _unwritable(self.path, error) from error
            raise
        self._end += len(line)
        self._appended += 1
        self._news.set()

    def close(self) -> None:
        """Write to the disk what is not there yet, and let others write. Once is enough."""
        if self._descriptor == _CLOSED:
            return
        self._closing.set()
        self._news.set()
        self._thread.join()
        self._flush()
        os.close(self._descriptor)
        self._descriptor = _CLOSED
        refusal, self._refusal = self._refusal, f"{self.path} is closed."
        if refusal:
            raise RunError(refusal)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        try:
            self.close()
        except RunError as unclosed:
            if error is None:
                raise
            error.add_note(str(unclosed))

    def _write(self, line: bytes) -> None:
        rest = memoryview(line)
        while rest:
            rest = rest[os.write(self._descriptor, rest) :]

    def _take_back(self, end: int) -> None:
        """Cut off what a failed write has left. Where that fails too, nothing may follow it."""
        try:
            os.ftruncate(self._descriptor, end)
        except OSError as error:
            self._refusal = str(_unwritable(self.path, error))

    def _keep_synced(self) -> None:
        while not self._closing.is_set():
            self._news.wait()
            self._news.clear()
            self._flush()
            self._closing.wait(self._sync_every)

    def _flush(self) -> None:
        """Write to the disk what is new. From any thread, one at a time.

        After a failure the system may have dropped what it could not write, and a second try
        would succeed without it. So the first failure is the last try.
        """
        with self._syncing:
            appended = self._appended
            if appended == self._synced or self._refusal:
                return
            try:
                self._fsync(self._descriptor)
                self._synced = appended
            except OSError as error:
                self._refusal = str(_unwritable(self.path, error))


def sync_folder(path: Path) -> None:
    """Make sure that a folder's list of names is on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _unwritable(path: Path, error: OSError) -> RunError:
    return RunError(
        f"{path} cannot be written: {error.strerror or error}. What was recorded stands; once "
        "that is seen to, the same command goes on where this one stopped."
    )


def _made_ready(path: Path, descriptor: int) -> str | None:
    _lock(path, descriptor)
    if os.fstat(descriptor).st_size == 0:
        sync_folder(path.parent)
    return _repair(path, descriptor)


def _lock(path: Path, descriptor: int) -> None:
    # Imported here because Windows, which has none, should still be able to read this module.
    import fcntl

    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise RunError(
            f"Another process is writing {path}. Wait until it has ended, or use another folder."
        ) from error


def _repair(path: Path, descriptor: int) -> str | None:
    """See to a last line that has no end; tells the user what was done."""
    size = os.fstat(descriptor).st_size
    start = _last_line(descriptor, size)
    if start == size:
        return None
    if _is_object(descriptor, start, size):
        os.write(descriptor, b"\n")
        os.fsync(descriptor)
        return f"The last line of {path} was whole but for its end, and got one."
    torn = path.with_suffix(".torn")
    _set_aside(descriptor, start, size, torn)
    os.ftruncate(descriptor, start)
    os.fsync(descriptor)
    return f"The last line of {path} was cut off; its {size - start:,} bytes are now in {torn}."


def _last_line(descriptor: int, size: int) -> int:
    """Where the bytes after the last newline begin, sought from the end."""
    end = size
    while end > 0:
        start = max(0, end - _BLOCK)
        found = os.pread(descriptor, end - start, start).rfind(b"\n")
        if found >= 0:
            return start + found + 1
        end = start
    return 0


def _is_object(descriptor: int, start: int, size: int) -> bool:
    # Most torn lines are told by how they end, and may be too long to be worth parsing.
    ending = os.pread(descriptor, _BLOCK, max(start, size - _BLOCK))
    if not ending.rstrip().endswith(b"}"):
        return False
    try:
        return isinstance(from_json(os.pread(descriptor, size - start, start)), dict)
    except ValueError:
        return False


def _set_aside(descriptor: int, start: int, size: int, torn: Path) -> None:
    with torn.open("ab") as aside:
        for offset in range(start, size, _BLOCK):
            aside.write(os.pread(descriptor, min(_BLOCK, size - offset), offset))
        aside.write(b"\n")
        aside.flush()
        os.fsync(aside.fileno())
    sync_folder(torn.parent)
