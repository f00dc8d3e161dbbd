"""Lines of JSONL files."""

from __future__ import annotations

from pathlib import Path

import pytest

from ludus.data import json_files
from ludus.data.json_files import numbered_lines
from ludus.errors import RunError


def test_lines_have_their_numbers_and_blank_ones_are_skipped(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(b"{}\n\n  \n[1]")
    assert list(numbered_lines(tmp_path / "a.jsonl")) == [(1, b"{}\n"), (4, b"[1]")]


def test_a_line_without_an_end_is_not_read_into_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(json_files, "MAX_LINE_BYTES", 1 << 20)
    fits = b"[" + b" " * ((1 << 20) - 3) + b"]\n"
    (tmp_path / "long.jsonl").write_bytes(fits + b" " + fits)
    lines = numbered_lines(tmp_path / "long.jsonl")
    assert next(lines) == (1, fits)
    with pytest.raises(RunError, match="1 MB"):
        next(lines)
    (tmp_path / "zero.jsonl").symlink_to("/dev/zero")
    with pytest.raises(RunError, match="1 MB"):
        next(numbered_lines(tmp_path / "zero.jsonl"))
