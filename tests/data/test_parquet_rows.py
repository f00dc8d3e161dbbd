"""Rows of Parquet files, those of `ludus curate` and those of other tools."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ludus.data.locked_database import ParquetRows
from ludus.errors import RunError


def write_parquet(file: Path, columns: dict[str, list[Any]], **options: Any) -> Path:
    import pyarrow
    import pyarrow.parquet

    pyarrow.parquet.write_table(pyarrow.table(columns), file, **options)
    return file


def test_any_window_of_rows_is_read_in_order(tmp_path: Path) -> None:
    name = "odd [name] {file}*.parquet"
    file = write_parquet(tmp_path / name, {"n": list(range(100))}, row_group_size=7)
    with ParquetRows(file) as rows:
        assert rows.count_rows() == 100
        assert [row["n"] for row in rows.read(33, 60)] == list(range(33, 60))
        assert [row["n"] for row in rows.read(98, 200)] == [98, 99]
        assert rows.read(100, 101) == [] and rows.read(5, 5) == []


def test_structs_have_no_nulls_that_arrow_has_added(tmp_path: Path) -> None:
    messages = [
        {"role": "user", "content": "Hi."},
        {"role": "assistant", "content": None, "calls": [{"name": "say"}, {"id": "b"}]},
    ]
    file = write_parquet(tmp_path / "x.parquet", {"messages": [messages], "reward": [None]})
    with ParquetRows(file) as rows:
        (row,) = rows.read(0, 1)
    assert row["messages"][0] == messages[0]
    assert row["messages"][1] == {"role": "assistant", "calls": [{"name": "say"}, {"id": "b"}]}
    assert row["reward"] is None


def test_what_is_no_parquet_is_one_sentence(tmp_path: Path) -> None:
    file = tmp_path / "train.parquet"
    file.write_text("{}\n")
    with ParquetRows(file) as rows, pytest.raises(RunError, match="Parquet") as caught:
        rows.count_rows()
    assert "\n" not in str(caught.value) and str(file) in str(caught.value)
