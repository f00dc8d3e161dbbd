"""Rows of the catalog belong to the right lines, whatever the files contain."""

from __future__ import annotations

import json
from codecs import BOM_UTF8
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from curation.attempts import attempt, model, read_rows, user
from ludus.curation import CurateConfig, curate
from ludus.curation.catalog import _READ_BLOCK_BYTES, Catalog
from ludus.errors import RunError

A, B, C = (attempt(name).to_line() for name in "abc")
ODD = [b"", b" ", b"\t", b"\r", b"\x0b", b"\x0c", b" \x0b\r\t\x0c ", b"\x00", b"\x1c", b"\x1f\x0b"]
ODD += [b"\x85", b"\xc2\xa0", b"\xef\xbb\xbf", b"\xff", b"nope", b"[", b"[]", b"{", b'"', b"\\"]


def parse_task(catalog: Catalog, row: int) -> str | None:
    """Return the task in the line of a row; None if it is not JSON."""
    try:
        return str(json.loads(catalog.read_line(row))["group_id"])
    except (ValueError, TypeError, KeyError):
        return None


def lines_of(file: Path) -> list[bytes]:
    content = file.read_bytes()
    return [line.strip() for line in content.split(b"\n")]


def check(catalog: Catalog) -> int:
    """Check that each row matches its line and location, and return the number of rows."""
    table = catalog.sql("SELECT rowid, file, readable, task FROM episodes ORDER BY rowid")
    for row, file, readable, task in table:
        path, number = catalog.location(row)
        assert path == catalog.files[file]
        assert lines_of(path)[number - 1] == catalog.read_line(row)
        assert not readable or parse_task(catalog, row) == task
    lines = sum(bool(line) for file in catalog.files for line in lines_of(file))
    assert len(table) == lines
    return lines


def read(folder: Path, *contents: bytes) -> list[str | None]:
    """Write and check these files, and return the tasks of their readable rows."""
    files = [folder / f"{number}.jsonl" for number in range(len(contents))]
    for file, content in zip(files, contents, strict=True):
        file.write_bytes(content)
    with Catalog.open(files, folder) as catalog:
        whole = "SELECT rowid, 1 FROM episodes"
        in_order = [(row, line.strip()) for row, _, line in catalog.read_lines(whole)]
        assert in_order == [(row, catalog.read_line(row)) for row in range(check(catalog))]
        good = catalog.sql("SELECT task FROM episodes WHERE readable ORDER BY rowid")
        return [task for (task,) in good]


@pytest.mark.parametrize("odd", ODD)
def test_odd_lines_do_not_shift_others(tmp_path: Path, odd: bytes) -> None:
    tasks = ["task of a", "task of b", "task of c"]
    line = odd + b"\n"
    assert read(tmp_path, A + line + B + line + line + C) == tasks
    assert read(tmp_path, line + A + B + C) == tasks
    assert read(tmp_path, A + B, C + odd) == tasks
    assert read(tmp_path, line, A + B, line + odd, C) == tasks


@pytest.mark.parametrize("space", [b" ", b"\t", b"\r", b"\x0b", b"\x0c"])
def test_whitespace_around_an_episode_is_ignored(tmp_path: Path, space: bytes) -> None:
    padded = space + A.strip() + space + b"\n"
    assert read(tmp_path, padded + B) == ["task of a", "task of b"]
    curate([tmp_path / "0.jsonl"], tmp_path / "out", CurateConfig(to="episodes"))
    assert (tmp_path / "out" / "train.jsonl").read_bytes() == A + B


def test_windows_line_endings_and_a_missing_last_newline(tmp_path: Path) -> None:
    three = ["task of a", "task of b", "task of c"]
    assert read(tmp_path, (A + B + b"\n" + C).replace(b"\n", b"\r\n")) == three
    assert read(tmp_path, (A + B).strip(), C.strip()) == three


def test_a_truncated_line_and_a_byte_order_mark_cost_one_line(tmp_path: Path) -> None:
    assert read(tmp_path, A + B[:-20]) == ["task of a"]
    assert read(tmp_path, BOM_UTF8 + A + B, A) == ["task of b", "task of a"]
    assert read(tmp_path, BOM_UTF8 + b"\n" + A + BOM_UTF8 + B) == ["task of a"]
    assert read(tmp_path, A + B.strip() + C + B) == ["task of a", "task of b"]


def test_empty_files_are_skipped(tmp_path: Path) -> None:
    assert read(tmp_path, b"", A, b"\n\n", b"", B, b"") == ["task of a", "task of b"]


@settings(deadline=None, max_examples=60, derandomize=True)
@example([b"", b" "])
@given(st.lists(st.sampled_from([A.strip(), B.strip(), *ODD]) | st.binary(max_size=5), max_size=9))
def test_any_bytes_between_episodes_do_not_shift_others(
    tmp_path_factory: pytest.TempPathFactory, lines: list[bytes]
) -> None:
    folder = tmp_path_factory.mktemp("any")
    content = A + b"\n".join(lines)
    good = [line.strip() for line in content.split(b"\n") if line.strip() in (A.strip(), B.strip())]
    assert len(read(folder, content, C)) == len(good) + 1


@pytest.mark.parametrize("near", [-2, -1, 0, 1, 2])
def test_lines_that_end_at_a_block_boundary(tmp_path: Path, near: int) -> None:
    size = _READ_BLOCK_BYTES + near - len(attempt("long", messages=(user(""),)).to_line())
    long = attempt("long", messages=(user("x" * size),)).to_line()
    assert len(long) == _READ_BLOCK_BYTES + near
    assert read(tmp_path, long + A + b" " + B, long + b"\n" + C)[1:3] == ["task of a", "task of b"]


@pytest.mark.parametrize("megabytes", [1.5, 17, 40])
def test_long_lines_are_read_within_the_memory_limit(tmp_path: Path, megabytes: float) -> None:
    long = attempt("long", messages=(user("q"), model("ab" * int(megabytes * 2**19)))).to_line()
    (tmp_path / "long.jsonl").write_bytes(A + long + b"\n" + B)
    with Catalog.open([tmp_path / "long.jsonl"], tmp_path) as catalog:
        assert catalog.kept == 3 and catalog.read_line(1) == long.strip()
        assert catalog.location(2)[1] == 4


NAMES = ["it's.jsonl", "a b.jsonl", "[x].jsonl", "*.jsonl", "a?.jsonl", "**", "]a[[!b].jsonl"]
NAMES += ["a\\b.jsonl", "{a,b}.jsonl", "%20.jsonl", "~.jsonl", "é\n.jsonl", "x.jsonl.gz", "x.zst"]


@pytest.mark.parametrize("name", NAMES)
def test_file_names_are_not_glob_patterns(tmp_path: Path, name: str) -> None:
    (tmp_path / "other.jsonl").write_bytes(B + C)
    (tmp_path / "ab.jsonl").write_bytes(B + C)
    (tmp_path / name).write_bytes(A)
    with Catalog.open([tmp_path / "ab.jsonl", tmp_path / name], tmp_path) as catalog:
        assert check(catalog) == 3 and parse_task(catalog, 2) == "task of a"


def test_relative_and_unnormalized_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "deep").mkdir()
    (tmp_path / "a.jsonl").write_bytes(A)
    monkeypatch.chdir(tmp_path / "deep")
    files = [Path("../a.jsonl"), Path("../deep/../b.jsonl")]
    (tmp_path / "b.jsonl").write_bytes(B + C)
    with Catalog.open(files, tmp_path) as catalog:
        assert check(catalog) == 3


def test_rows_are_in_the_order_of_runs_and_lines(tmp_path: Path) -> None:
    files = [tmp_path / f"{name}.jsonl" for name in ("z", "a", "m")]
    for file in files:
        names = (f"{file.stem}{number}" for number in range(3_000))
        file.write_bytes(b"".join(attempt(name).to_line() for name in names))
    curate(files, tmp_path / "out", CurateConfig())
    ids = [row["episode_id"] for row in read_rows(tmp_path / "out" / "train.jsonl")]
    assert ids == [f"{name}{number}" for name in "zam" for number in range(3_000)]


def test_a_truncated_file_raises(tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl"
    file.write_bytes(A + B)
    with Catalog.open([file], tmp_path) as catalog:
        file.write_bytes(A)
        with pytest.raises(RunError, match="truncated"):
            catalog.read_line(1)
        with pytest.raises(RunError, match="truncated"):
            list(catalog.read_lines("SELECT rowid, 1 FROM episodes"))
