"""DuckDB databases in which SQL of users runs.

Such SQL comes from command lines, configuration files and web pages, and may have been copied from
anywhere. It computes over the tables of its database: files (except those that the opener names),
the network, extensions, variables of Python and settings are out of reach.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ludus.errors import ConfigError, MissingExtra

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

DUCKDB_MEMORY_LIMIT = "1GB"
"""Memory that a database may use before it spills to disk."""


def open_locked_database(
    purpose: str,
    *,
    temp_directory: Path | None = None,
    readable_files: Sequence[Path] = (),
    memory_limit: str = DUCKDB_MEMORY_LIMIT,
    threads: int | None = None,
    file: Path | None = None,
) -> DuckDBPyConnection:
    """Open a database without access to anything but `readable_files`: in memory, or in a `file`.

    It spills to `temp_directory`, if there is one, whose files SQL can read. Its settings cannot be
    changed any more, here neither. `purpose` starts the sentence if DuckDB is not installed.
    """
    try:
        import duckdb
    except ImportError:
        raise MissingExtra.of("curate", purpose) from None

    config: dict[str, str | bool | int | float | list[str]] = {
        "memory_limit": memory_limit,
        "temp_directory": str(temp_directory or ""),
    }
    if threads is not None:
        config["threads"] = threads
    # A name is read as a glob pattern, and the pattern is what DuckDB looks up in the list.
    names = [name for file in readable_files for name in (str(file), escape_glob(str(file)))]
    database = duckdb.connect(":memory:" if file is None else str(file), config=config)
    # It would garble the output. In Jupyter without ipywidgets it is off, and setting it fails.
    has_bar = database.execute("SELECT current_setting('enable_progress_bar')").fetchone()
    if has_bar == (True,):
        database.execute("SET enable_progress_bar = false")
    for setting in (
        "python_enable_replacements = false",
        f"allowed_paths = [{', '.join(map(quote_sql, names))}]",
        "enable_external_access = false",
        "lock_configuration = true",
    ):
        database.execute(f"SET {setting}")
    return database


def check_single_query(database: DuckDBPyConnection, query: str, name: str) -> None:
    """Raise `ConfigError` unless the database may run the text: one SELECT; `name` is its argument.

    A condition can end the statement around it: `true; DROP TABLE episodes`.
    """
    import duckdb

    statements = database.extract_statements(query)
    if [statement.type for statement in statements] != [duckdb.StatementType.SELECT]:
        raise ConfigError(f"`{name}` must be one SQL condition, without further statements.")


def describe_sql_error(error: Exception) -> str:
    """Return DuckDB's error about a user's SQL as one sentence."""
    import duckdb

    kind, _, text = str(error).strip().partition(": ")
    line = (text or kind).splitlines()[0]
    if isinstance(error, duckdb.PermissionException) or "configuration has been locked" in line:
        problem = re.sub(r" - .*", "", line).replace('""', '"').rstrip(".")
        return (
            f"{problem}. This SQL can use the fields of episodes, but no files, network, extensions"
            " or settings."
        )
    return line if line.endswith((".", "!", "?")) else f"{line}."


def quote_sql(text: str) -> str:
    """Quote a string literal of SQL."""
    return "'" + text.replace("'", "''") + "'"


def escape_glob(name: str) -> str:
    """Escape the special characters of a file name, which DuckDB expands as a glob pattern."""
    return re.sub(r"([*?[])", r"[\1]", name)
