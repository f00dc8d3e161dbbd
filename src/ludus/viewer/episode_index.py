"""An index of all episodes: a DuckDB table with what `curate --where` can use of each.

It lives in a temporary folder, and its memory is limited. Lines are read in chunks, so that the
first episodes can be viewed at once while the rest is read, and a file that grows is continued.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from array import array
from codecs import BOM_UTF8
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock, Timer
from typing import TYPE_CHECKING, Any, Self

from ludus.curation.load_episodes import COLUMN_TYPES, SELECT_DERIVED
from ludus.data.episode_reader import ResumeIndex, parse_head
from ludus.data.json_files import MAX_LINE_BYTES, is_json_object, line_too_long
from ludus.data.locked_database import describe_sql_error, open_locked_database, quote_sql
from ludus.data.stage_output import StageOutput
from ludus.errors import ConfigError, RunError

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

MEMORY_LIMIT = "160MB"
"""Memory of DuckDB. Chunks are small enough to be inserted within it."""
QUERY_TIMEOUT_S = 20.0
LINE_BITS = 32
"""An episode's id is the number of its file, and in the lower bits its line."""
_FIRST_CHUNK_BYTES = 1 << 19
_CHUNK_BYTES = 6 << 20
_VIEW_COLUMNS = {
    "_file": f"(_id >> {LINE_BITS})::INTEGER",
    "_line": f"(_id & {(1 << LINE_BITS) - 1})::BIGINT",
    "_step": "try_cast(agent->>'$.step' AS INTEGER)",
    "_tokens": "usage.prompt_tokens + usage.completion_tokens",
    "_seconds": "date_diff('millisecond', timing.started_at, timing.ended_at) / 1000",
    "_question": "left(list_filter(messages, lambda m: m.role = 'user')[1].content, 200)",
}
"""Further columns of the table, for the page. Their names cannot be used in `where`."""
_READABLE = (
    "version = 1 AND episode_id NOT NULL AND stop_reason NOT NULL AND environment NOT NULL "
    "AND group_id NOT NULL"
)
_TAIL_BYTES = 256
_IMAGE_MARK = b'"data:image/'
_IMAGE = re.compile(rb'"data:image/[^"]*"')


@dataclass(slots=True)
class IndexedFile:
    """A growing file of episodes, and its lines that are indexed so far.

    It is read once from its beginning and continued as it grows. One line can be read at any time
    without the others. Blank lines are lines too.
    """

    number: int
    """Its place among the files of the index."""
    key: str
    """The key of its entry."""
    path: Path
    starts: array[int] = field(default_factory=lambda: array("q", [0]))
    """The offset of each indexed line, and of the next one."""
    unreadable: int = 0
    index: ResumeIndex = field(default_factory=ResumeIndex)
    """Which lines count, and their mean reward."""
    incomplete: int = 0
    """Bytes of an incomplete last line, which its writer has yet to end."""
    _tail: bytes = b""
    """The last bytes before `position`, by which a rewritten file is noticed."""

    @property
    def position(self) -> int:
        """Bytes that are indexed."""
        return self.starts[-1]

    @property
    def lines(self) -> int:
        return len(self.starts) - 1

    @property
    def size(self) -> int:
        try:
            return self.path.stat().st_size
        except OSError:
            return 0

    def was_rewritten(self) -> bool:
        """Whether the indexed part has changed, as when a training resumes from a checkpoint."""
        if self.size < self.position:
            return True
        return self._tail != self._read(self.position - len(self._tail), len(self._tail))

    def reset(self) -> None:
        """Forget all lines."""
        self.starts, self._tail, self.unreadable = array("q", [0]), b"", 0
        self.index = ResumeIndex()

    def count(self, number: int, line: bytes) -> float | None:
        """Count an appended line; returns its effective reward, if it has one."""
        head = None
        if is_json_object(line):
            with suppress(RunError):  # A later version of the format.
                head = parse_head(line, self.path, number)
        return None if head is None else next(self.index.count([head]))

    def read_appended(self, max_bytes: int) -> Sequence[bytes]:
        """Read complete lines after the indexed ones; an incomplete last line is left for later."""
        if not self.position and self._read(0, len(BOM_UTF8)) == BOM_UTF8:
            self.starts[0] = len(BOM_UTF8)
        while True:
            block = self._read(self.position, max_bytes)
            end = block.rfind(b"\n") + 1
            if end or len(block) < max_bytes:
                self.incomplete = len(block) - end if len(block) < max_bytes else 0
                return block[:end].splitlines(keepends=True)
            if max_bytes > MAX_LINE_BYTES:
                raise line_too_long(self.path)
            max_bytes *= 2  # One line is longer than that.

    def add(self, lines: Sequence[bytes]) -> None:
        """Note that these lines, which `read_appended` returned, are indexed."""
        position = self.position
        for line in lines:
            position += len(line)
            self.starts.append(position)
        self._tail = lines[-1][-_TAIL_BYTES:]

    def read_line(self, line: int) -> bytes:
        """Read one line, counted from 0."""
        if not 0 <= line < self.lines:
            raise RunError(f"{self.key} has no episode in line {line}.")
        return self._read(self.starts[line], self.starts[line + 1] - self.starts[line])

    def _read(self, start: int, size: int) -> bytes:
        try:
            with self.path.open("rb", buffering=0) as file:
                return os.pread(file.fileno(), size, start)
        except FileNotFoundError:
            return b""
        except OSError as error:
            raise RunError(f"{self.path} cannot be read: {error.strerror or error}.") from error


def number_line(number: int, reward: float | None, line: bytes) -> bytes:
    """The line as the index stores it: with its number and effective reward, without images."""
    if line.isspace():
        return b"\n"
    if _IMAGE_MARK in line:
        line = _IMAGE.sub(b'"data:image/"', line)
    counted = b"null" if reward is None else repr(reward).encode()
    return b'{"_id":%d,"_reward":%b,' % (number, counted) + line.lstrip()[1:]


class EpisodeIndex:
    """The table `episodes` over the files of some entries, which `update` fills."""

    def __init__(self) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="ludus-view-"))
        self._chunk = self._folder / "chunk.jsonl"
        try:
            self._database = open_locked_database(
                "Viewing",
                temp_directory=self._folder,
                memory_limit=MEMORY_LIMIT,
                file=self._folder / "index.duckdb",
            )
        except BaseException:
            shutil.rmtree(self._folder, ignore_errors=True)
            raise
        self.files: list[IndexedFile] = []
        self.revision = 0
        """Changes with every change of the table."""
        self.error = ""
        """Why a file could not be read, if one could not."""
        self._stopped, self._write_lock = False, Lock()
        self._chunk.write_bytes(b"")
        self._execute(f"CREATE TABLE episodes AS {self._select('', '', 1 << 20)} LIMIT 0")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._database.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def stop(self) -> None:
        """Let an update that runs in another thread return early."""
        self._stopped = True

    def add_entries(self, entries: Sequence[StageOutput]) -> None:
        """Index the files of new entries, too."""
        known = {file.key for file in self.files}
        for entry in entries:
            if entry.episodes is not None and entry.shown_path not in known:
                self.files.append(IndexedFile(len(self.files), entry.shown_path, entry.episodes))

    def find_file(self, key: str) -> IndexedFile:
        for file in self.files:
            if file.key == key:
                return file
        raise RunError(f"There is no run {key!r}.")

    @property
    def progress(self) -> tuple[int, int]:
        """Bytes that are indexed, and bytes of all files, without incomplete last lines."""
        files = list(self.files)
        done = sum(file.position for file in files)
        return done, max(done, sum(file.size - file.incomplete for file in files))

    def update(self) -> None:
        """Index everything that was appended since the last time."""
        error = ""
        # The smallest first, so that a long file does not delay the others.
        for file in sorted(self.files, key=lambda file: file.size - file.position):
            try:
                with self._write_lock:
                    if file.was_rewritten():
                        file.reset()
                        self._execute(f"DELETE FROM episodes WHERE _file = {file.number}")
                        self.revision += 1
                while not self._stopped and self._index_chunk(file):
                    pass
            except (RunError, OSError) as failure:
                error = str(failure)
        self.error = error

    def sql(self, query: str, *parameters: Any) -> list[tuple[Any, ...]]:
        with self.cursor() as cursor:
            return cursor.execute(query, parameters).fetchall()

    @contextmanager
    def cursor(self) -> Iterator[DuckDBPyConnection]:
        """A connection for one query, which is interrupted after a while.

        Raises `ConfigError` for a query that fails: it contains SQL of the user.
        """
        import duckdb

        with self._database.cursor() as cursor:
            timer = Timer(QUERY_TIMEOUT_S, cursor.interrupt)
            timer.start()
            try:
                yield cursor
            except duckdb.InterruptException:
                raise ConfigError(
                    f"The query took more than {QUERY_TIMEOUT_S:g} s. Use a simpler `where`."
                ) from None
            except duckdb.Error as error:
                message = f"The query cannot be evaluated: {describe_sql_error(error)}"
                raise ConfigError(message) from None
            finally:
                timer.cancel()

    def _index_chunk(self, file: IndexedFile) -> bool:
        """Index the next lines of a file; False at its end."""
        with self._write_lock:
            lines = file.read_appended(_CHUNK_BYTES if file.position else _FIRST_CHUNK_BYTES)
            if not lines:
                return False
            first = (file.number << LINE_BITS) + file.lines
            with self._chunk.open("wb") as chunk:
                chunk.writelines(
                    number_line(first + place, file.count(file.lines + place + 1, line), line)
                    for place, line in enumerate(lines)
                )
            # DuckDB's buffers are several times as large as its longest line.
            longest = max(1 << 16, 2 * max(map(len, lines)))
            select = self._select(file.path.as_posix(), file.path.parent.name, longest)
            inserted = self._execute(f"INSERT INTO episodes {select} WHERE {_READABLE}").fetchall()
            file.unreadable += len(lines) - sum(map(bytes.isspace, lines)) - inserted[0][0]
            file.add(lines)
            self.revision += 1
        return True

    def _select(self, path: str, run: str, longest: int) -> str:
        types = ", ".join(
            f"{quote_sql(name)}: {quote_sql(sql_type)}"
            for name, sql_type in {"_id": "BIGINT", "_reward": "DOUBLE", **COLUMN_TYPES}.items()
        )
        view_columns = ", ".join(f"{sql} AS {name}" for name, sql in _VIEW_COLUMNS.items())
        return f"""
            SELECT *, {SELECT_DERIVED}, {view_columns}
            FROM (SELECT *, {quote_sql(path)} AS filename FROM read_json(
                {quote_sql(str(self._chunk))}, format = 'newline_delimited', ignore_errors = true,
                compression = 'none', maximum_object_size = {longest}, columns = {{{types}}}
            ))
        """

    def _execute(self, query: str) -> DuckDBPyConnection:
        import duckdb

        try:
            return self._database.execute(query)
        except duckdb.Error as error:
            raise RunError(f"Cannot index the episodes: {describe_sql_error(error)}") from None
