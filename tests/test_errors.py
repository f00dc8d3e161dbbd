"""Hints in error messages."""

from __future__ import annotations

from pathlib import Path

from ludus.errors import similar_path_hint


def test_a_neighbour_with_a_similar_name_is_named(tmp_path: Path) -> None:
    (tmp_path / "wordle").mkdir()
    assert str(tmp_path / "wordle") in similar_path_hint(str(tmp_path / "wordel"))
    assert similar_path_hint(str(tmp_path / "sums")) == ""
    assert similar_path_hint(str(tmp_path / "absent" / "sums")) == ""
