"""Load files of episodes into a DuckDB table, one row per line.

DuckDB reads the files in parallel, and parses only the fields that the query uses.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from ludus.data.episode import StopReason
from ludus.data.locked_database import (
    check_single_query,
    describe_sql_error,
    escape_glob,
    open_locked_database,
    quote_sql,
)
from ludus.errors import ConfigError, RunError, did_you_mean

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

_MAX_LINE_BYTES = (1 << 20, 1 << 24, 1 << 26, 1 << 28)
"""Limits for the longest line, tried in turn. Most episodes are far below the first; those with
images may not be. A lower limit means smaller buffers, which fit into the CPU cache."""
_MAX_PARALLEL_LINE_BYTES = 1 << 24
"""Above this DuckDB reads with one thread: each thread buffers twice the longest line."""
_MESSAGE_TYPE = (
    "STRUCT(role VARCHAR, content VARCHAR, reasoning_content VARCHAR, "
    'tool_calls STRUCT("function" STRUCT(name VARCHAR, arguments VARCHAR))[], "name" VARCHAR)'
)
_TOKEN_COUNTS = ("prompt_tokens", "completion_tokens", "cached_tokens", "reasoning_tokens")
COLUMN_TYPES: Mapping[str, str] = {
    "version": "INTEGER",
    "episode_id": "VARCHAR",
    "attempt": "INTEGER",
    "stop_reason": "VARCHAR",
    "reward": "DOUBLE",
    "usage": f"STRUCT({', '.join(f'{name} BIGINT' for name in _TOKEN_COUNTS)}, cost DOUBLE)",
    "environment": "VARCHAR",
    "task": "JSON",
    "seed": "BIGINT",
    "group_id": "VARCHAR",
    "agent": "JSON",
    "messages": f"{_MESSAGE_TYPE}[]",
    "tools": "JSON",
    "rewards": "MAP(VARCHAR, DOUBLE)",
    "explored_turns": "INTEGER[]",
    "tutor_replies": f"{_MESSAGE_TYPE}[]",
    "done": "BOOLEAN",
    "turns": "INTEGER",
    "tool_calls": "INTEGER",
    "malformed_calls": "INTEGER",
    "error": 'STRUCT(kind VARCHAR, "where" VARCHAR, message VARCHAR)',
    "timing": "STRUCT(started_at TIMESTAMP, ended_at TIMESTAMP, model_s DOUBLE, "
    "environment_s DOUBLE)",
}
"""SQL types of the fields of an episode. Calls are read without their ids, so that calls with the
same name and arguments compare equal."""
DERIVED_COLUMNS = {
    "run": "parse_filename(parse_dirpath(filename))",
    "provider": "agent->>'$.provider'",
    "model": "agent->>'$.model'",
    "cost": "usage.cost",
}
"""Further columns for `where`."""
SELECT_DERIVED = ", ".join(
    f"{expression} AS {name}" for name, expression in DERIVED_COLUMNS.items()
)
_FIRST_REPLY_INDEX = "list_position(list_transform(messages, lambda m: m.role), 'assistant')"
_BAD_ARGUMENTS = (
    "malformed_calls > 0 AND len(list_filter(flatten(list_transform(messages, lambda m: "
    "m.tool_calls)), lambda c: trim(c.function.arguments) != '' AND "
    "json_type(try_cast(c.function.arguments AS JSON)) IS DISTINCT FROM 'OBJECT')) > 0"
)

_FAULT_REASONS = ", ".join(f"'{reason}'" for reason in StopReason if reason.is_fault)
_CONTENT_COLUMNS = f"""
    hash(tools) AS tools,
    {_FIRST_REPLY_INDEX} AS reply,
    hash(messages[:reply - 1]) AS prompt,
    hash(messages[reply:], explored_turns, tutor_replies) AS completion,
    coalesce({_BAD_ARGUMENTS}, false) AS bad_arguments
"""


def find_episode_files(runs: Sequence[Path]) -> list[Path]:
    """Find the episode file of each run, which may be a run folder or the file itself."""
    files = [run / "episodes.jsonl" if run.is_dir() else run for run in runs]
    seen: set[Path] = set()
    for run, file in zip(runs, files, strict=True):
        if not file.is_file():
            raise RunError(
                f"{run} has no episodes.jsonl. `ludus collect` and `ludus import` create runs."
                if run.is_dir()
                else f"There is no run {run}. `ludus runs` lists those below runs/."
            )
        if file.resolve() in seen:
            raise ConfigError(f"{run} is given twice. Give each run once.")
        seen.add(file.resolve())
    return files


def load_episodes(
    files: Sequence[Path],
    folder: Path,
    where: str | None,
    *,
    contents: bool,
    labels: bool,
) -> DuckDBPyConnection:
    """Open a database with the table `episodes`: a row for each line, in order of files and lines.

    With `labels` an episode that has a tutor's replies is `tutored`.
    """
    for max_line_bytes in _MAX_LINE_BYTES:
        with ExitStack() as stack:
            # Opened again for every limit: once it is open, its number of threads is fixed.
            database = stack.enter_context(
                open_locked_database(
                    "Curating",
                    temp_directory=folder,
                    readable_files=files,
                    threads=1 if max_line_bytes > _MAX_PARALLEL_LINE_BYTES else None,
                )
            )
            import duckdb  # After the check that it is installed.

            if where is not None:
                check_load_condition(database, where)
            try:
                database.execute(_load_query(files, where, contents, labels, max_line_bytes))
            except (duckdb.OutOfMemoryException, duckdb.IOException) as error:
                raise RunError(f"Cannot read the episodes: {describe_sql_error(error)}") from None
            except duckdb.Error as error:
                if "maximum_object_size" in str(error):
                    continue
                problem = "Cannot read the episodes" if where is None else "`where` cannot be used"
                error_class = RunError if where is None else ConfigError
                raise error_class(f"{problem}: {describe_sql_error(error)}") from None
            stack.pop_all()
            return database
    raise RunError(
        f"Cannot read the episodes: a line is longer than {_MAX_LINE_BYTES[-1] >> 20} MB. "
        "Remove that episode from its file."
    )


def _load_query(
    files: Sequence[Path],
    where: str | None,
    contents: bool,
    labels: bool,
    max_line_bytes: int,
) -> str:
    names = ", ".join(quote_sql(str(file)) for file in files)
    globs = ", ".join(quote_sql(escape_glob(str(file))) for file in files)
    types = ", ".join(
        f"{quote_sql(name)}: {quote_sql(sql_type)}" for name, sql_type in COLUMN_TYPES.items()
    )
    return f"""
        CREATE OR REPLACE TABLE episodes AS
        SELECT
            list_position([{names}], filename)::INTEGER - 1 AS file,
            coalesce(version = 1 AND episode_id NOT NULL AND stop_reason NOT NULL
                AND environment NOT NULL AND group_id NOT NULL, false) AS readable,
            stop_reason IN ({_FAULT_REASONS}) AS broken,
            environment,
            group_id AS task,
            CASE WHEN isfinite(reward) THEN reward END AS reward,
            coalesce(turns, 0) AS turns,
            {"coalesce(len(tutor_replies) > 0, false)" if labels else "false"} AS tutored,
            {_CONTENT_COLUMNS + "," if contents else ""}
            coalesce(({where or "true"}
            ), false) AS wanted,
            NULL::VARCHAR AS reason,
            NULL::VARCHAR AS split
        FROM (
            SELECT *, {SELECT_DERIVED}
            FROM read_json(
                [{globs}], format = 'newline_delimited', ignore_errors = true, filename = true,
                compression = 'none', maximum_object_size = {max_line_bytes},
                columns = {{{types}}}
            )
        )
    """


def check_load_condition(database: DuckDBPyConnection, where: str) -> None:
    """Raise `ConfigError` if episodes cannot be loaded with `where`, a condition over one of them.

    It has to be valid after WHERE, which rules out aggregates and functions that return rows.
    """
    import duckdb

    nulls = ", ".join(f"NULL::{sql_type} AS {name}" for name, sql_type in COLUMN_TYPES.items())
    episode = f"(SELECT *, {SELECT_DERIVED} FROM (SELECT ''::VARCHAR AS filename, {nulls}))"
    try:
        # First without parentheses: inside them "a) or (b" would be valid.
        check_single_query(database, f"SELECT 1 FROM {episode} WHERE {where}", "where")
        database.execute(f"SELECT 1 FROM {episode} WHERE {where}\nLIMIT 0")
        database.execute(f"SELECT 1 FROM {episode} WHERE ({where}\n) LIMIT 0")
        result = database.execute(f"SELECT typeof(({where}\n)) FROM {episode}").fetchall()[0][0]
    except duckdb.Error as error:
        unknown = re.search(r'Referenced column "(.+?)" not found', str(error))
        if unknown is None:
            raise ConfigError(
                f"`where` must be an SQL condition, got {where!r}: {describe_sql_error(error)}"
            ) from None
        names = [*COLUMN_TYPES, *DERIVED_COLUMNS]
        hint = did_you_mean(unknown[1], names, f"It has {', '.join(names)}.")
        raise ConfigError(
            f"`where` {where!r}: an episode has no column {unknown[1]!r}. {hint}"
        ) from None
    if result not in ("BOOLEAN", '"NULL"'):
        raise ConfigError(f"`where` must be a condition, got {where!r} of type {result}.")
