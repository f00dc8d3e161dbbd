"""SQL of users reaches the tables of its database, and nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest

from ludus.data.locked_database import (
    check_single_query,
    describe_sql_error,
    escape_glob,
    open_locked_database,
    quote_sql,
)
from ludus.errors import ConfigError

duckdb = pytest.importorskip("duckdb")


@pytest.fixture(autouse=True)
def _secret(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "secrets.csv").write_text("secret\n1\n")
    (tmp_path / "spill").mkdir()
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT * FROM read_csv('secrets.csv')",
        "SELECT * FROM 'secrets.csv'",
        "SELECT * FROM read_text('secrets.csv')",
        "SELECT * FROM read_blob('secrets.csv')",
        "SELECT * FROM glob('*')",
        "SELECT * FROM query('FROM read_csv(''secrets.csv'')')",
        "COPY (SELECT 1) TO 'copy.csv'",
        "EXPORT DATABASE 'copy'",
        "ATTACH 'other.db'",
        "INSTALL httpfs",
        "LOAD httpfs",
        "SELECT * FROM read_csv('https://example.org/a.csv')",
        "SET enable_external_access = true",
        "SET lock_configuration = false",
        "RESET allowed_paths",
        "PRAGMA profiling_output = 'profile.json'",
        "CALL enable_logging(storage = 'file', storage_path = 'log')",
    ],
)
def test_files_network_extensions_and_settings_are_refused(tmp_path: Path, sql: str) -> None:
    before = sorted(tmp_path.iterdir())
    with open_locked_database("This", temp_directory=tmp_path / "spill") as database:
        with pytest.raises(duckdb.Error) as caught:
            database.execute(sql)
        message = describe_sql_error(caught.value)
    assert "no files, network, extensions or settings" in message and "\n" not in message
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.parametrize(
    ("sql", "name"), [("SELECT getenv('HOME')", "getenv"), ("SELECT * FROM variable", "variable")]
)
def test_the_process_is_out_of_reach(tmp_path: Path, sql: str, name: str) -> None:
    import pyarrow

    variable = pyarrow.table({"secret": [1]})
    with (
        open_locked_database("This", temp_directory=tmp_path / "spill") as database,
        pytest.raises(duckdb.Error) as caught,
    ):
        database.execute(sql)
    assert name in describe_sql_error(caught.value) and variable.num_rows == 1


@pytest.mark.parametrize("name", ["rows.csv", "a[b]*?.csv", "it's.csv"])
def test_named_files_can_be_read(tmp_path: Path, name: str) -> None:
    file = tmp_path / name
    file.write_text("value\n7\n")
    with open_locked_database("This", temp_directory=tmp_path, readable_files=[file]) as database:
        query = f"SELECT value FROM read_csv({quote_sql(escape_glob(str(file)))})"
        assert database.execute(query).fetchall() == [(7,)]


def test_a_large_query_spills_to_its_folder(tmp_path: Path) -> None:
    spill = tmp_path / "spill"
    with open_locked_database("This", temp_directory=spill, memory_limit="60MB") as database:
        database.execute("CREATE TABLE numbers AS SELECT hash(i) AS n FROM range(10000000) t(i)")
        assert sum(file.stat().st_size for file in spill.iterdir()) > 10_000_000


@pytest.mark.parametrize("sql", ["SELECT 1; SELECT 2", "COPY (SELECT 1) TO 'a.csv'", "", "SET a=1"])
def test_only_a_single_query_is_accepted(tmp_path: Path, sql: str) -> None:
    with open_locked_database("This", temp_directory=tmp_path / "spill") as database:
        check_single_query(database, "SELECT 1", "where")
        with pytest.raises(ConfigError, match="`where`"):
            check_single_query(database, sql, "where")


def test_a_database_opens_in_a_notebook_without_widgets(tmp_path: Path) -> None:
    import nbformat
    from nbclient import NotebookClient

    code = f"""
import sys
sys.modules["ipywidgets"] = None
from pathlib import Path
from ludus.data.locked_database import open_locked_database
database = open_locked_database("Testing", temp_directory=Path({str(tmp_path)!r}))
database.execute("SELECT 7").fetchall()
"""
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(code)])
    NotebookClient(notebook, kernel_name="python3", timeout=300).execute()
    assert notebook.cells[0].outputs[0]["data"]["text/plain"] == "[(7,)]"
