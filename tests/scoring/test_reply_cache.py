"""The cache of a judge's replies on disk."""

from pathlib import Path

import pytest

from ludus.errors import ConfigError
from ludus.scoring.judge import JudgeReplyCache


def test_a_reply_is_found_again(tmp_path: Path) -> None:
    JudgeReplyCache(tmp_path / "a" / "b").put("0123", "8 of 10", {"model": "m"})
    cache = JudgeReplyCache(tmp_path / "a" / "b")
    assert cache.get("0123") == "8 of 10"
    assert cache.get("0124") is None
    assert (tmp_path / "a" / "b" / "01" / "0123.json").is_file()


@pytest.mark.parametrize("damaged", ["", '{"reply": "8 o', "[]", "{}"])
def test_a_corrupt_file_counts_as_absent_and_is_replaced(tmp_path: Path, damaged: str) -> None:
    cache = JudgeReplyCache(tmp_path)
    cache.put("0123", "8 of 10", {})
    (tmp_path / "01" / "0123.json").write_text(damaged)
    assert cache.get("0123") is None
    cache.put("0123", "9 of 10", {})
    assert cache.get("0123") == "9 of 10"


def test_a_reply_that_cannot_be_written_is_not_cached(tmp_path: Path) -> None:
    cache = JudgeReplyCache(tmp_path)
    (tmp_path / "01").write_text("a file instead of the folder")
    cache.put("0123", "8 of 10", {})
    assert cache.get("0123") is None


def test_a_folder_that_cannot_be_created_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cache"):
        JudgeReplyCache(tmp_path / "file" / "cache")
