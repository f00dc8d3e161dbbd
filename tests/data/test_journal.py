"""The journal on real files: killed writers, two writers, full disks."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from world import wait_until

from data.sample_episodes import attempt, written
from ludus.data.journal import Journal
from ludus.errors import RunError

LINES = [attempt(index, messages=({"role": "user", "content": "ü" * 3},)) for index in range(3)]
WHOLE = b"".join(episode.to_line() for episode in LINES)


def in_another_process(script: str, path: Path) -> subprocess.Popen[str]:
    """A Python program that has `journal`, opened on `path`."""
    start = "import os, sys; from pathlib import Path; from ludus.data.journal import Journal\n"
    opening = f"journal = Journal.open(Path({str(path)!r}))\n"
    return subprocess.Popen(
        [sys.executable, "-c", start + opening + script],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


class Disk:
    """Stands in for fsync: counts, and fails when told to."""

    def __init__(self) -> None:
        self.syncs = 0
        self.fails = False
        self.asked = threading.Event()

    def fsync(self, descriptor: int) -> None:
        self.syncs += 1
        self.asked.set()
        if self.fails:
            raise OSError(errno.EIO, os.strerror(errno.EIO))


def test_lines_are_in_the_file_as_soon_as_they_are_appended(tmp_path: Path) -> None:
    path = tmp_path / "episodes.jsonl"
    with Journal.open(path) as journal:
        journal.append(b"{}\n")
        assert path.read_bytes() == b"{}\n"
        journal.append(b"[]\n")
    with Journal.open(path) as journal:
        journal.append(b"3\n")
    assert path.read_bytes() == b"{}\n[]\n3\n"
    assert journal.repair_note is None


@pytest.mark.parametrize("line", [b"", b"{}", b"\n{}", b"{}\n{}\n"])
def test_what_is_not_one_line_is_refused(line: bytes, tmp_path: Path) -> None:
    with Journal.open(tmp_path / "j") as journal, pytest.raises(ValueError, match="newline"):
        journal.append(line)
    assert (tmp_path / "j").read_bytes() == b""


@settings(deadline=None)  # it waits for the disk
@given(cut=st.integers(0, len(WHOLE)))
def test_a_file_cut_anywhere_keeps_its_complete_lines(
    cut: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = written(tmp_path_factory.mktemp("cut") / "episodes.jsonl", WHOLE[:cut])
    complete, newline, tail = WHOLE[:cut].rpartition(b"\n")
    complete += newline
    lacks_only_its_end = tail.endswith(b"}") and WHOLE[cut : cut + 1] == b"\n"
    with Journal.open(path) as journal:
        journal.append(b"{}\n")

    torn = path.with_suffix(".torn")
    if not tail:
        assert journal.repair_note is None
    elif lacks_only_its_end:
        complete += tail + b"\n"
        assert "newline" in (journal.repair_note or "")
    else:
        assert torn.read_bytes() == tail + b"\n"
        assert f"{len(tail)} bytes" in (journal.repair_note or "")
        assert str(torn) in (journal.repair_note or "")
    assert path.read_bytes() == complete + b"{}\n"
    assert torn.exists() == bool(tail and not lacks_only_its_end)


def test_a_torn_line_longer_than_a_block_is_set_aside_whole(tmp_path: Path) -> None:
    tail = b'{"text":"' + b"x" * 300_000
    path = written(tmp_path / "episodes.jsonl", WHOLE, tail)
    Journal.open(path).close()
    assert path.read_bytes() == WHOLE
    assert path.with_suffix(".torn").read_bytes() == tail + b"\n"


@pytest.mark.parametrize("tail", [b"\0" * 5000, b'{"a":1}}', b"[1]", b'{"a":"\xff"}'])
def test_what_is_no_object_is_set_aside_however_it_ends(tail: bytes, tmp_path: Path) -> None:
    path = written(tmp_path / "episodes.jsonl", WHOLE, tail)
    Journal.open(path).close()
    assert path.read_bytes() == WHOLE


def test_a_second_torn_line_is_set_aside_after_the_first(tmp_path: Path) -> None:
    path = tmp_path / "episodes.jsonl"
    for tail in (b'{"one', b'{"two'):
        with path.open("ab") as file:
            file.write(tail)
        Journal.open(path).close()
    assert path.with_suffix(".torn").read_bytes() == b'{"one\n{"two\n'


def test_a_killed_writer_loses_nothing_and_frees_the_file(tmp_path: Path) -> None:
    path = tmp_path / "episodes.jsonl"
    script = """
for index in range(10**9):
    journal.append(b'{"index":%d}\\n' % index)
    os.write(1, b'%d\\n' % index)
"""
    with in_another_process(script, path) as writer:
        assert writer.stdout is not None
        for _ in range(500):
            writer.stdout.readline()
        writer.send_signal(signal.SIGKILL)
        reported = 500 + len(writer.stdout.read().splitlines())
    with Journal.open(path):
        lines = path.read_bytes().splitlines()
    # The kill may fall between an append and its report.
    assert len(lines) in (reported, reported + 1)
    assert lines == [b'{"index":%d}' % index for index in range(len(lines))]


def test_a_second_writer_is_told_so(tmp_path: Path) -> None:
    path = tmp_path / "episodes.jsonl"
    with in_another_process("print('ready', flush=True); sys.stdin.read()", path) as writer:
        assert writer.stdout is not None
        assert writer.stdout.readline() == "ready\n"
        with pytest.raises(RunError, match="Another process is writing"):
            Journal.open(path)
        writer.communicate("")
    Journal.open(path).close()


def test_two_journals_of_one_process_exclude_each_other_too(tmp_path: Path) -> None:
    with Journal.open(tmp_path / "j"), pytest.raises(RunError, match="Another process"):
        Journal.open(tmp_path / "j")


def test_a_file_that_may_not_grow_keeps_whole_lines_only(tmp_path: Path) -> None:
    """A limit on the file's size gives what a full disk gives: a short write, then an error."""
    path = tmp_path / "episodes.jsonl"
    script = """
import resource
from ludus.errors import RunError
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, resource.RLIM_INFINITY))
journal.append(b"a" * 899 + b"\\n")
try:
    journal.append(b"b" * 299 + b"\\n")
except RunError as error:
    print(error)
print(os.path.getsize(journal.path))
journal.append(b"c" * 99 + b"\\n")
journal.close()
"""
    with in_another_process(script, path) as writer:
        said, _ = writer.communicate()
    message, size = said.splitlines()
    assert writer.returncode == 0
    assert "File too large" in message
    assert size == "900"
    assert path.read_bytes() == b"a" * 899 + b"\n" + b"c" * 99 + b"\n"


@pytest.mark.parametrize("where", ["missing/episodes.jsonl", "."])
def test_a_file_that_cannot_be_opened_is_a_run_error(where: str, tmp_path: Path) -> None:
    with pytest.raises(RunError, match="cannot be written: "):
        Journal.open(tmp_path / where)


def test_many_appends_share_a_sync(tmp_path: Path) -> None:
    disk = Disk()
    with Journal.open(tmp_path / "j", sync_interval=60, fsync=disk.fsync) as journal:
        journal.append(b"1\n")
        assert disk.asked.wait(10)
        for _ in range(100):
            journal.append(b"2\n")
    assert disk.syncs == 2


def test_nothing_new_needs_no_sync(tmp_path: Path) -> None:
    disk = Disk()
    with Journal.open(tmp_path / "j", sync_interval=0.001, fsync=disk.fsync) as journal:
        time.sleep(0.02)
        assert disk.syncs == 0
        journal.append(b"1\n")
        assert disk.asked.wait(10)
        time.sleep(0.02)
    assert disk.syncs == 1


def test_a_failed_sync_is_told_at_the_next_call_and_ever_after(tmp_path: Path) -> None:
    disk = Disk()
    journal = Journal.open(tmp_path / "j", fsync=disk.fsync)
    disk.fails = True
    journal.append(b"1\n")
    wait_until(lambda: journal._failure is not None)
    disk.fails = False
    with pytest.raises(RunError, match="Input/output error"):
        journal.append(b"2\n")
    with pytest.raises(RunError, match="Input/output error"):
        journal.close()
    assert (tmp_path / "j").read_bytes() == b"1\n"
    Journal.open(tmp_path / "j").close()


def test_an_error_inside_is_not_hidden_by_one_at_the_end(tmp_path: Path) -> None:
    disk = Disk()
    disk.fails = True
    with (
        pytest.raises(KeyError) as caught,
        Journal.open(tmp_path / "j", fsync=disk.fsync) as journal,
    ):
        journal.append(b"1\n")
        raise KeyError("inside")
    assert "Input/output error" in caught.value.__notes__[0]


def test_a_closed_journal_takes_no_more(tmp_path: Path) -> None:
    journal = Journal.open(tmp_path / "j")
    journal.close()
    journal.close()
    with pytest.raises(RunError, match="is closed"):
        journal.append(b"{}\n")
