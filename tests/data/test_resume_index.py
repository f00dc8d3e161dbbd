"""Damage in the middle of a journal: found when it is read back, and quickly passed where not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from data.sample_episodes import RUN, attempt, written
from ludus.data import episode_reader as reading
from ludus.data.episode_reader import read_resume_index
from ludus.data.files import Checksum
from ludus.data.messages import Message

ASKED = Message(role="user", content="Where is the ball?")
DAMAGE: dict[str, Callable[[bytes], bytes]] = {
    "not UTF-8": lambda line: line.replace(b"ball", b"b\xff\xfel"),
    "not JSON": lambda line: line.replace(b'"content"', b'"content', 1),
    "two lines run together": lambda line: line.replace(b'"messages":[', line[:-1]),
    "zeros": lambda line: line.replace(b"ball", bytes(4)),
}


def line(index: int) -> bytes:
    return attempt(index, reward=1.0, messages=(ASKED,)).to_line()


def journal(path: Path, *lines: bytes) -> Checksum:
    written(path, *lines)
    return Checksum.of_file(path)


def noted(seen: list[bytes], line: bytes) -> bool:
    seen.append(line)
    return True


@pytest.mark.parametrize("kind", DAMAGE)
def test_a_line_that_is_damaged_behind_its_head_is_named_and_played_again(
    kind: str, tmp_path: Path
) -> None:
    path = tmp_path / "e"
    before = journal(path, line(0), line(1), line(2))
    journal(path, line(0), DAMAGE[kind](line(1)), line(2))
    for checksum in (None, before):
        recorded = read_resume_index(path, run=RUN, checksum=checksum)
        assert (recorded.unreadable, recorded.unreadable_lines) == (1, [2])
        assert list(recorded.pending_indices(3)) == [1]
        assert recorded.totals.episodes == 2


def test_lines_that_a_checksum_covers_are_not_parsed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "e"
    known = journal(path, line(0), line(1))
    journal(path, line(0), line(1), line(2))
    parsed: list[bytes] = []
    monkeypatch.setattr(reading, "is_json_object", lambda line: noted(parsed, line))
    read_resume_index(path, checksum=known)
    assert parsed == [line(2)]
    read_resume_index(path, checksum=Checksum(known.size, known.crc32 ^ 1))
    assert parsed[1:] == [line(0), line(1), line(2)]


def test_a_journal_with_damage_gets_no_checksum(tmp_path: Path) -> None:
    """Else the next reader would take the damaged line for the episode that it was."""
    path = tmp_path / "e"
    whole = journal(path, line(0), line(1))
    assert read_resume_index(path).checksum == whole
    journal(path, line(0), DAMAGE["not JSON"](line(1)), line(1))
    assert read_resume_index(path).checksum is None


def test_a_checksum_grows_with_what_is_appended(tmp_path: Path) -> None:
    path = tmp_path / "e"
    first, both = journal(path, line(0)), journal(path, line(0), line(1))
    assert first.extend(line(1)) == both


@pytest.mark.parametrize("cut", [1, 20, len(line(1))])
def test_a_file_that_has_become_shorter_is_parsed(
    cut: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "e"
    known = journal(path, line(0), line(1), b"\n")
    path.write_bytes(path.read_bytes()[:-cut])
    parsed: list[bytes] = []
    monkeypatch.setattr(reading, "is_json_object", lambda line: noted(parsed, line))
    assert read_resume_index(path, checksum=known).checksum == Checksum.of_file(path)
    assert parsed and parsed[0] == line(0)


def test_blank_lines_are_in_the_checksum(tmp_path: Path) -> None:
    path = tmp_path / "e"
    known = journal(path, line(0), b"\n", b"  \n", line(1))
    recorded = read_resume_index(path, checksum=known)
    assert (recorded.checksum, recorded.totals.episodes) == (known, 2)
