"""An index of all episodes: a DuckDB table with what `curate --where` can use of each.

It lives in a temporary folder, and its memory is limited. Lines are read in chunks, so that the
first episodes can be viewed at once while the rest is read, and a file that grows is continued.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Lock, Thread, Timer
from typing import TYPE_CHECKING, Any, Self

from ludus.curation.load_episodes import COLUMN_TYPES, SELECT_DERIVED
from ludus.data.locked_database import describe_sql_error, open_locked_database, quote_sql
from ludus.data.stage_output import StageOutput
from ludus.errors import ConfigError, RunError
from ludus.viewer.episode_files import EpisodeFile, number_line

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

MEMORY_LIMIT = "160MB"
"""Memory of DuckDB. Chunks are small enough to be inserted within it."""
QUERY_TIMEOUT_S = 20.0
LINE_BITS = 32
"""An episode's id is the number of its file, and in the lower bits its line."""
_FIRST_CHUNK_BYTES = 1 << 19
_CHUNK_BYTES = 6 << 20
_POLL_INTERVAL_S = 1.0
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


class EpisodeIndex:
    """The table `episodes` over the files of some entries, filled by a separate thread."""

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
        self.files: list[EpisodeFile] = []
        self.revision = 0
        """Changes with every change of the table."""
        self.error = ""
        """Why a file could not be read, if one could not."""
        self._stopped, self._wake, self._write_lock = Event(), Event(), Lock()
        self._thread = Thread(target=self._poll, name="episode index", daemon=True)
        self._create_table()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stopped.set()
        self._wake.set()
        self._thread.join()
        self._database.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def add_entries(self, entries: Sequence[StageOutput]) -> None:
        """Index the files of new entries, too."""
        known = {file.key for file in self.files}
        for entry in entries:
            if entry.episodes is not None and entry.shown_path not in known:
                self.files.append(EpisodeFile(len(self.files), entry.shown_path, entry.episodes))
        self._wake.set()

    def find_file(self, key: str) -> EpisodeFile:
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
                self._forget_if_rewritten(file)
                while not self._stopped.is_set() and self._index_chunk(file):
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

    def _poll(self) -> None:
        while not self._stopped.is_set():
            self.update()
            self._wake.wait(_POLL_INTERVAL_S)
            self._wake.clear()

    def _create_table(self) -> None:
        self._chunk.write_bytes(b"")
        self._execute(f"CREATE TABLE episodes AS {self._select('', '', 1 << 20)} LIMIT 0")

    def _forget_if_rewritten(self, file: EpisodeFile) -> None:
        with self._write_lock:
            if file.was_rewritten():
                file.reset()
                self._execute(f"DELETE FROM episodes WHERE _file = {file.number}")
                self.revision += 1

    def _index_chunk(self, file: EpisodeFile) -> bool:
        """Index the next lines of a file; False at its end."""
        with self._write_lock:
            lines = file.read_appended(_CHUNK_BYTES if file.position else _FIRST_CHUNK_BYTES)
            if lines:
                self._insert(file, lines)
        return bool(lines)

    def _insert(self, file: EpisodeFile, lines: Sequence[bytes]) -> None:
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
