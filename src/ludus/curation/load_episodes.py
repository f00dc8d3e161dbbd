"""The one pass over files of episodes: lines of JSON -> the rows of a table.

DuckDB reads them in parallel, and unpacks of a line only what is asked for.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ludus.data.episode import StopReason
from ludus.errors import ConfigError, RunError, did_you_mean

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

_MAX_LINE_BYTES = (1 << 20, 1 << 24, 1 << 26, 1 << 28)
"""Bytes. Most episodes are far below the first; those with pictures in them may not be. The less,
the more of what DuckDB reads stays in the processor's cache."""
_MAX_PARALLEL_LINE_BYTES = 1 << 24
"""Above this DuckDB reads with one thread: each holds twice the biggest line, and all must fit."""
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
    "done": "BOOLEAN",
    "turns": "INTEGER",
    "tool_calls": "INTEGER",
    "malformed_calls": "INTEGER",
    "error": 'STRUCT(kind VARCHAR, "where" VARCHAR, message VARCHAR)',
    "timing": "STRUCT(started_at TIMESTAMP, ended_at TIMESTAMP, model_s DOUBLE, "
    "environment_s DOUBLE)",
}
"""What a line of `episodes.jsonl` is to SQL. Calls have no ids here: two calls are the same call
if name and arguments are."""
_DERIVED_COLUMNS = {
    "run": "parse_filename(parse_dirpath(filename))",
    "provider": "agent->>'$.provider'",
    "model": "agent->>'$.model'",
    "cost": "usage.cost",
}
"""What `--where` may also say."""
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
    hash(messages[reply:]) AS completion,
    coalesce({_BAD_ARGUMENTS}, false) AS bad_arguments
"""


def create_episodes_table(
    database: DuckDBPyConnection, files: Sequence[Path], where: str | None, contents: bool
) -> None:
    """Make the table `episodes`: a row for each line, in the order of files and lines."""
    import duckdb

    for biggest in _MAX_LINE_BYTES:
        if biggest > _MAX_PARALLEL_LINE_BYTES:
            database.execute("SET threads = 1")
        try:
            database.execute(_load_query(files, where, contents, biggest))
            return
        except (duckdb.OutOfMemoryException, duckdb.IOException) as error:
            raise RunError(f"The episodes cannot be read: {_first_sentence(str(error))}") from None
        except duckdb.Error as error:
            if "maximum_object_size" in str(error):
                continue
            if where is None:
                raise RunError(
                    f"The episodes cannot be read: {_first_sentence(str(error))}"
                ) from None
            raise ConfigError(
                f"--where cannot be worked out: {_first_sentence(str(error))}"
            ) from None
    raise RunError(
        f"The episodes cannot be read: a line is longer than {_MAX_LINE_BYTES[-1] >> 20} MB. "
        "Take that episode out of its file."
    )


def _load_query(
    files: Sequence[Path], where: str | None, contents: bool, max_line_bytes: int
) -> str:
    """The one pass over the files. What is not asked for is not even unpacked by DuckDB."""
    names = ", ".join(quote_sql(_escape_glob(file)) for file in files)
    return f"""
        CREATE OR REPLACE TABLE episodes AS
        SELECT
            list_position([{", ".join(quote_sql(str(file)) for file in files)}], filename)::INTEGER
                - 1 AS file,
            coalesce(version = 1 AND episode_id NOT NULL AND stop_reason NOT NULL
                AND environment NOT NULL AND group_id NOT NULL, false) AS readable,
            stop_reason IN ({_FAULT_REASONS}) AS broken,
            environment,
            group_id AS task,
            CASE WHEN isfinite(reward) THEN reward END AS reward,
            coalesce(turns, 0) AS turns,
            {_CONTENT_COLUMNS + "," if contents else ""}
            coalesce(({where or "true"}
            ), false) AS wanted,
            NULL::VARCHAR AS reason,
            NULL::VARCHAR AS side
        FROM (
            SELECT *, {", ".join(f"{form} AS {name}" for name, form in _DERIVED_COLUMNS.items())}
            FROM read_json(
                [{names}], format = 'newline_delimited', ignore_errors = true, filename = true,
                compression = 'none', maximum_object_size = {max_line_bytes}, columns = {_column_types()}
            )
        )
    """


def validate_where(database: DuckDBPyConnection, where: str) -> None:
    """Whether `where` is an expression over an episode's columns, before anything is read.

    One that can stand after WHERE: what counts or multiplies rows cannot say what one row is.
    """
    import duckdb

    typed = ", ".join(f"NULL::{kind} AS {name}" for name, kind in COLUMN_TYPES.items())
    more = ", ".join(f"{form} AS {name}" for name, form in _DERIVED_COLUMNS.items())
    episode = f"(SELECT *, {more} FROM (SELECT ''::VARCHAR AS filename, {typed}))"
    try:
        # As it stands first: in parentheses "a) or (b" would do.
        database.execute(f"SELECT 1 FROM {episode} WHERE {where}\nLIMIT 0")
        database.execute(f"SELECT 1 FROM {episode} WHERE ({where}\n) LIMIT 0")
        kind = database.execute(f"SELECT typeof(({where}\n)) FROM {episode}").fetchall()[0][0]
    except duckdb.Error as error:
        raise ConfigError(_where_error(where, str(error))) from None
    if kind not in ("BOOLEAN", '"NULL"'):
        raise ConfigError(f"--where {where!r} is a {kind}, and not a condition.")


def _where_error(where: str, said: str) -> str:
    """What DuckDB says in half a page, in a line."""
    names = [*COLUMN_TYPES, *_DERIVED_COLUMNS]
    unknown = re.search(r'Referenced column "(.+?)" not found', said)
    if unknown is None:
        why = said.partition(": ")[2] or said
        return f"--where {where!r} is no condition in SQL: {_first_sentence(why)}"
    hint = did_you_mean(unknown[1], names, f"It has {', '.join(names)}.")
    return f"--where {where!r}: an episode has no {unknown[1]!r}. {hint}"


def _column_types() -> str:
    listed = (f"{quote_sql(name)}: {quote_sql(kind)}" for name, kind in COLUMN_TYPES.items())
    return f"{{{', '.join(listed)}}}"


def quote_sql(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _escape_glob(file: Path) -> str:
    """DuckDB reads every name as a pattern; this one stands for the file alone."""
    return "".join(f"[{mark}]" if mark in "*?[" else mark for mark in str(file))


def _first_sentence(words: str) -> str:
    words = words.strip().splitlines()[0]
    return words if words.endswith((".", "!", "?")) else f"{words}."
