"""`episodes.jsonl`: the append-only file of a run, for one writer at a time.

Nothing in it is ever overwritten or deleted. A killed process loses nothing that was appended; a
machine that loses power loses no more than the last moments. What a line says is
`ludus.data.episode_reader`' business.
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

_BLOCK_BYTES = 64 << 10
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
        repair_note: str | None = None,
        sync_interval: float = 0.25,
        fsync: Callable[[int], None] = os.fsync,
    ) -> None:
        self.path = path
        self.repair_note = repair_note
        """What was wrong with the last line when the file was opened, in words for the user."""
        self._descriptor = descriptor
        self._sync_interval = sync_interval
        self._fsync = fsync
        self._end = os.fstat(descriptor).st_size
        self._appended = self._synced = 0
        self._failure: str | None = None
        self._has_new_lines, self._closing, self._sync_lock = Event(), Event(), Lock()
        self._thread = Thread(target=self._sync_loop, name=f"sync {path.name}", daemon=True)
        self._thread.start()

    @classmethod
    def open(
        cls, path: Path, *, sync_interval: float = 0.25, fsync: Callable[[int], None] = os.fsync
    ) -> Journal:
        """Open or create the file, lock it, and repair its last line if a writer was cut off.

        The lock is the system's: it goes when its holder does, however that ended.
        """
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o666)
            try:
                repaired = _prepare(path, descriptor)
            except BaseException:
                os.close(descriptor)
                raise
        except OSError as error:
            raise _write_error(path, error) from error
        return cls(path, descriptor, repair_note=repaired, sync_interval=sync_interval, fsync=fsync)

    def append(self, line: bytes) -> None:
        """Append one line, with the newline that ends it.

        All of it is in the file afterwards; or, with an error, nothing of it.
        """
        if self._failure:
            raise RunError(self._failure)
        if line.find(b"\n") != len(line) - 1 or not line:
            raise ValueError("A line ends with a newline, and has no other.")
        try:
            self._write(line)
        except BaseException as error:
            self._truncate(self._end)
            if isinstance(error, OSError):
                raise _write_error(self.path, error) from error
            raise
        self._end += len(line)
        self._appended += 1
        self._has_new_lines.set()

    def close(self) -> None:
        """Write to the disk what is not there yet, and let others write. Once is enough."""
        if self._descriptor == _CLOSED:
            return
        self._closing.set()
        self._has_new_lines.set()
        self._thread.join()
        self._flush()
        os.close(self._descriptor)
        self._descriptor = _CLOSED
        refusal, self._failure = self._failure, f"{self.path} is closed."
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

    def _truncate(self, end: int) -> None:
        """Cut off what a failed write has left. Where that fails too, nothing may follow it."""
        try:
            os.ftruncate(self._descriptor, end)
        except OSError as error:
            self._failure = str(_write_error(self.path, error))

    def _sync_loop(self) -> None:
        while not self._closing.is_set():
            self._has_new_lines.wait()
            self._has_new_lines.clear()
            self._flush()
            self._closing.wait(self._sync_interval)

    def _flush(self) -> None:
        """Write to the disk what is new. From any thread, one at a time.

        After a failure the system may have dropped what it could not write, and a second try
        would succeed without it. So the first failure is the last try.
        """
        with self._sync_lock:
            appended = self._appended
            if appended == self._synced or self._failure:
                return
            try:
                self._fsync(self._descriptor)
                self._synced = appended
            except OSError as error:
                self._failure = str(_write_error(self.path, error))


def fsync_dir(path: Path) -> None:
    """Make sure that a folder's list of names is on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _write_error(path: Path, error: OSError) -> RunError:
    return RunError(
        f"{path} cannot be written: {error.strerror or error}. What was recorded stands; once "
        "that is seen to, the same command goes on where this one stopped."
    )


def _prepare(path: Path, descriptor: int) -> str | None:
    _lock(path, descriptor)
    if os.fstat(descriptor).st_size == 0:
        fsync_dir(path.parent)
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
    start = _last_line_start(descriptor, size)
    if start == size:
        return None
    if _is_json_object(descriptor, start, size):
        os.write(descriptor, b"\n")
        os.fsync(descriptor)
        return f"The last line of {path} was whole but for its end, and got one."
    torn = path.with_suffix(".torn")
    _save_torn_line(descriptor, start, size, torn)
    os.ftruncate(descriptor, start)
    os.fsync(descriptor)
    return f"The last line of {path} was cut off; its {size - start:,} bytes are now in {torn}."


def _last_line_start(descriptor: int, size: int) -> int:
    """Where the bytes after the last newline begin, sought from the end."""
    end = size
    while end > 0:
        start = max(0, end - _BLOCK_BYTES)
        found = os.pread(descriptor, end - start, start).rfind(b"\n")
        if found >= 0:
            return start + found + 1
        end = start
    return 0


def _is_json_object(descriptor: int, start: int, size: int) -> bool:
    # Most torn lines are told by how they end, and may be too long to be worth parsing.
    ending = os.pread(descriptor, _BLOCK_BYTES, max(start, size - _BLOCK_BYTES))
    if not ending.rstrip().endswith(b"}"):
        return False
    try:
        return isinstance(from_json(os.pread(descriptor, size - start, start)), dict)
    except ValueError:
        return False


def _save_torn_line(descriptor: int, start: int, size: int, torn: Path) -> None:
    with torn.open("ab") as aside:
        for offset in range(start, size, _BLOCK_BYTES):
            aside.write(os.pread(descriptor, min(_BLOCK_BYTES, size - offset), offset))
        aside.write(b"\n")
        aside.flush()
        os.fsync(aside.fileno())
    fsync_dir(torn.parent)
