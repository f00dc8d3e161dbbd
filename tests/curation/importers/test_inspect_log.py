"""The container of an Inspect AI log; see `inspect_logs` for the origin of the files."""

import sys
import tracemalloc
from base64 import b64encode
from pathlib import Path
from random import Random
from zipfile import ZIP_DEFLATED, ZIP_STORED, ZipFile
from zlib import crc32

import pytest

from curation.importers.inspect_logs import (
    COLOURS,
    EPOCHS,
    FAILED,
    build_sample,
    episodes,
    write_log,
)
from ludus.curation.importers import inspect_log
from ludus.curation.importers.base import UnreadableRecord
from ludus.curation.importers.inspect_importer import InspectImporter
from ludus.data.episode import Episode
from ludus.errors import MissingExtra, RunError

PYTHON_READS_ZSTANDARD = sys.version_info >= (3, 14)


def unreadable_reasons(path: Path) -> list[str]:
    return [str(item).removeprefix(f"{path}: ") for item in InspectImporter().read_episodes(path)]


def test_an_unfinished_log_yields_its_samples(tmp_path: Path) -> None:
    path = write_log(tmp_path, build_sample(), header="_journal/start.json")
    assert episodes(path)[0].environment == "colours"


def test_a_log_without_samples_is_unreadable(tmp_path: Path) -> None:
    (reason,) = unreadable_reasons(write_log(tmp_path))
    assert "samples" in reason
    path = tmp_path / "log.json"
    path.write_text('{"version": 2, "status": "started", "eval": {"task": "colours"}}')
    assert unreadable_reasons(path) == [reason]


def test_a_log_without_a_header_is_unreadable(tmp_path: Path) -> None:
    reason = "this is not an Inspect AI log: it has no header with `eval`"
    assert unreadable_reasons(write_log(tmp_path, build_sample(), header=None)) == [reason]
    path = tmp_path / "log.json"
    path.write_text("[]")
    assert unreadable_reasons(path) == [reason]


@pytest.mark.parametrize("log", [FAILED, COLOURS, EPOCHS])
def test_a_truncated_log_is_unreadable(tmp_path: Path, log: Path) -> None:
    path = tmp_path / log.name
    path.write_bytes(log.read_bytes()[:-200])
    (reason,) = unreadable_reasons(path)
    assert "damaged" in reason or reason.startswith("not JSON: ")


def test_a_damaged_sample_does_not_affect_others(tmp_path: Path) -> None:
    path = write_log(tmp_path, build_sample(), build_sample(), [])
    with ZipFile(path) as archive:
        second = archive.getinfo("samples/2_epoch_1.json")
    content = bytearray(path.read_bytes())
    middle = second.header_offset + second.compress_size // 2
    content[middle : middle + 50] = bytes(50)
    path.write_bytes(content)
    first, *rest = InspectImporter().read_episodes(path)
    assert isinstance(first, Episode)
    assert all(isinstance(item, UnreadableRecord) for item in rest)
    assert [str(item).removeprefix(f"{path}: ").split(": ")[0] for item in rest] == [
        "samples/2_epoch_1.json",
        "samples/3_epoch_1.json",
    ]


def test_a_split_sample_is_unreadable(tmp_path: Path) -> None:
    path = write_log(tmp_path, build_sample())
    with ZipFile(path, "a") as archive:
        archive.writestr("samples/2_epoch_1/sample.json", "{}")
        archive.writestr("samples/2_epoch_1/messages/0.json", "[]")
    _, reason = unreadable_reasons(path)
    assert reason.startswith("samples/2_epoch_1/sample.json: ")


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_the_later_of_two_versions_of_a_sample_is_read(tmp_path: Path) -> None:
    path = write_log(tmp_path, build_sample(scores={}))
    with ZipFile(FAILED) as old, ZipFile(path, "a") as new:
        new.writestr("samples/1_epoch_1.json", old.read("samples/sky_epoch_1.json"))
    assert [episode.reward for episode in episodes(path)] == [1.0]


def test_samples_are_loaded_one_at_a_time(tmp_path: Path) -> None:
    large = build_sample(store={"notes": ["x" * 1000] * 1000})
    path = write_log(tmp_path, *[large] * 20)
    tracemalloc.start()
    count = sum(isinstance(item, Episode) for item in InspectImporter().read_episodes(path))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert count == 20
    assert peak < 6_000_000


@pytest.mark.parametrize("zstandard", [False, True])
def test_a_member_that_expands_too_much_is_unreadable(
    tmp_path: Path, zstandard: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inspect_log, "_MAX_MEMBER_BYTES", 1 << 20)
    content = b"[" + b"{}," * (3 << 20) + b"{}]"
    path = write_log(tmp_path, build_sample())
    with ZipFile(path, "a", ZIP_DEFLATED) as archive:
        if not zstandard:
            archive.writestr("samples/bomb_epoch_1.json", content)
        else:
            packed = pytest.importorskip("zstandard").compress(content)
            archive.writestr("samples/bomb_epoch_1.json", packed, ZIP_STORED)
            # What the directory at the end of the archive says, once it is closed.
            info = archive.getinfo("samples/bomb_epoch_1.json")
            info.compress_type, info.CRC, info.file_size = 93, crc32(content), len(content)
    tracemalloc.start()
    good, bomb = InspectImporter().read_episodes(path)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert isinstance(good, Episode) and "expands to more than 1 MiB" in str(bomb)
    assert peak < 6_000_000


_FILLER = b64encode(Random(0).randbytes(900_000))
"""Hardly compressible, so that the archive may expand to a hundred times as much."""
_MANY_VALUES = b"{}," * 1_000_000 + b"{}"


@pytest.mark.parametrize("name", ["header.json", "samples/bomb_epoch_1.json"])
@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b'{"messages":[%b]}' % _MANY_VALUES, "more than 1,000,000 values"),
        (b'{"x":"%b","messages":[%b]}' % (_FILLER, _MANY_VALUES), "more than 1,000,000 values"),
        (b'{"x":"%b%b"}' % (_FILLER, b"x" * (7 << 20)), "more than 8 MiB"),
    ],
)
def test_a_member_that_would_take_too_much_memory_is_not_parsed(
    tmp_path: Path, name: str, content: bytes, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inspect_log, "MAX_LINE_BYTES", 8 << 20)
    path = write_log(tmp_path, header=None if name == "header.json" else "header.json")
    with ZipFile(path, "a", ZIP_DEFLATED) as archive:
        archive.writestr(name, content)
    tracemalloc.start()
    (refused,) = unreadable_reasons(path)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert refused.startswith(f"{name}: ") and reason in refused
    assert peak < 12_000_000


def test_commas_in_texts_are_no_values(tmp_path: Path) -> None:
    text = ',{["\\' * 300_000
    (episode,) = episodes(write_log(tmp_path, build_sample(id=text)))
    assert episode.task["id"] == text


@pytest.mark.skipif(PYTHON_READS_ZSTANDARD, reason="Python reads zstandard itself")
def test_a_missing_zstandard_names_the_extra(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "zstandard", None)
    with pytest.raises(MissingExtra, match=r"'ludus-rl\[curate\]'"):
        list(InspectImporter().read_episodes(COLOURS))


def test_a_damaged_zstandard_member_does_not_affect_others(tmp_path: Path) -> None:
    pytest.importorskip("zstandard")
    path = tmp_path / "log.eval"
    with ZipFile(COLOURS) as archive:
        sky = archive.getinfo("samples/sky_epoch_1.json")
    content = bytearray(COLOURS.read_bytes())
    content[sky.header_offset + 400] ^= 0xFF
    path.write_bytes(content)
    assert [isinstance(item, Episode) for item in InspectImporter().read_episodes(path)].count(
        False
    ) == 1


def test_a_missing_log_raises(tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"No such file"):
        list(InspectImporter().read_episodes(tmp_path / "none.eval"))
