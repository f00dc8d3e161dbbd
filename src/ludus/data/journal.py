"""The journal of a run, `episodes.jsonl`: append-only, with one writer at a time.

Lines are never overwritten or deleted. A killed process loses nothing that was appended; a power
failure loses at most the lines of the last moment. `ludus.data.episode_reader` reads the lines.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from threading import Event, Lock, Thread
from types import TracebackType
from typing import Self

from ludus.data.files import fsync_path, lock_file
from ludus.data.json_files import is_json_object
from ludus.errors import RunError

_BLOCK_BYTES = 64 << 10
_CLOSED = -1


class Journal:
    """A file of lines that is open for appending; see `Journal.open`.

    Every line is written to the kernel at once, so that it survives the process. `fsync` takes
    milliseconds: a thread calls it for all lines that have come in the meantime.
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
        """For the user: how the last line was repaired when the file was opened, if it was."""
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
        """Open or create the file, lock it, and repair its last line if it is incomplete."""
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o666)
            try:
                lock_file(path, descriptor)
                if os.fstat(descriptor).st_size == 0:
                    fsync_path(path.parent)
                note = _repair_torn_line(path, descriptor)
            except BaseException:
                os.close(descriptor)
                raise
        except OSError as error:
            raise _journal_write_error(path, error) from error
        return cls(path, descriptor, repair_note=note, sync_interval=sync_interval, fsync=fsync)

    def append(self, line: bytes) -> None:
        """Append one line, which ends with a newline.

        If it raises, nothing of the line is in the file.
        """
        if self._failure:
            raise RunError(self._failure)
        if line.find(b"\n") != len(line) - 1 or not line:
            raise ValueError("A line must end with a newline and contain no other one.")
        rest = memoryview(line)
        try:
            while rest:
                rest = rest[os.write(self._descriptor, rest) :]
        except BaseException as error:
            try:
                os.ftruncate(self._descriptor, self._end)
            except OSError as failed:
                # The incomplete line stays in the file, and no other may be added to it.
                self._failure = str(_journal_write_error(self.path, failed))
            if isinstance(error, OSError):
                raise _journal_write_error(self.path, error) from error
            raise
        self._end += len(line)
        self._appended += 1
        self._has_new_lines.set()

    def close(self) -> None:
        """Sync what is not on the disk yet, and release the lock. May be called twice."""
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

    def _sync_loop(self) -> None:
        while not self._closing.is_set():
            self._has_new_lines.wait()
            self._has_new_lines.clear()
            self._flush()
            self._closing.wait(self._sync_interval)

    def _flush(self) -> None:
        """Sync new lines to the disk; called from both threads, hence the lock.

        After a failed fsync the kernel may drop the pages that it could not write, and a second
        fsync would succeed without them. So the first failure is final.
        """
        with self._sync_lock:
            appended = self._appended
            if appended == self._synced or self._failure:
                return
            try:
                self._fsync(self._descriptor)
                self._synced = appended
            except OSError as error:
                self._failure = str(_journal_write_error(self.path, error))


def _journal_write_error(path: Path, error: OSError) -> RunError:
    return RunError(
        f"{path} cannot be written: {error.strerror or error}. What was recorded is kept; once the "
        "problem is solved, the same command continues from there."
    )


def _repair_torn_line(path: Path, descriptor: int) -> str | None:
    """Repair a last line without a newline; returns a note for the user."""
    size = start = os.fstat(descriptor).st_size
    newline = -1
    while start > 0 and newline < 0:
        end, start = start, max(0, start - _BLOCK_BYTES)
        newline = os.pread(descriptor, end - start, start).rfind(b"\n")
    start += newline + 1
    if start == size:
        return None
    line = os.pread(descriptor, size - start, start)
    if is_json_object(line):
        os.write(descriptor, b"\n")
        os.fsync(descriptor)
        return f"The last line of {path} had no newline; it was added."
    torn = path.with_suffix(".torn")
    with torn.open("ab") as file:
        file.write(line + b"\n")
        file.flush()
        os.fsync(file.fileno())
    fsync_path(torn.parent)
    os.ftruncate(descriptor, start)
    os.fsync(descriptor)
    return f"The last line of {path} was incomplete; its {size - start:,} bytes are now in {torn}."
