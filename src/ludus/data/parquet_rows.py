"""Random access to the rows of a Parquet file, as JSON, without loading it into memory."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import Any, Self

from pydantic_core import from_json

from ludus.data.jsonable import prune_nulls
from ludus.data.locked_database import escape_glob, open_locked_database, quote_sql
from ludus.data.tool_schema import JsonObject
from ludus.errors import RunError

_MEMORY_LIMIT = "160MB"


class ParquetRows:
    """The rows of a file, for several threads at once."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def __enter__(self) -> Self:
        self._database = open_locked_database(
            "Reading Parquet", readable_files=[self._file], memory_limit=_MEMORY_LIMIT, threads=1
        )
        return self

    def __exit__(self, *error: object) -> None:
        self._database.close()

    def count_rows(self) -> int:
        """How many rows there are, from the metadata of the file."""
        ((count,),) = self._query("SELECT count(*) FROM {file}")
        return int(count)

    def read(self, start: int, stop: int) -> list[JsonObject]:
        """Read the rows from `start` to before `stop`, in the order of the file."""
        window = f"LIMIT {max(0, stop - start)} OFFSET {start}"
        rows = self._query(f"SELECT to_json(row) FROM (FROM {{file}} {window}) AS row")
        return [self._parse(text) for (text,) in rows]

    def _parse(self, text: str) -> JsonObject:
        # As for training: a struct has nulls for missing fields, JSON text has only its own.
        return {
            name: value if name in self._json_columns else prune_nulls(value)
            for name, value in from_json(text).items()
        }

    @cached_property
    def _json_columns(self) -> set[str]:
        columns = self._query("DESCRIBE FROM {file}")
        return {name for name, kind, *_ in columns if "JSON" in kind}

    def _query(self, query: str) -> list[Any]:
        import duckdb

        source = f"read_parquet({quote_sql(escape_glob(str(self._file)))})"
        try:
            return self._database.cursor().execute(query.format(file=source)).fetchall()
        except duckdb.Error as error:
            reason = " ".join(str(error).split())[:200]
            raise RunError(f"{self._file} cannot be read as Parquet: {reason}") from None
