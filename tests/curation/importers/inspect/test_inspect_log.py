"""The container of an Inspect AI log. `inspect_logs` says how the files were made."""

import sys
import tracemalloc
from pathlib import Path
from zipfile import ZipFile

import pytest

from curation.importers.inspect_logs import COLOURS, EPOCHS, FAILED, a_log, a_sample, episodes
from ludus.curation.importers.inspect.inspect_samples import read_episodes
from ludus.data.episode import Episode
from ludus.errors import MissingExtra, RunError

PYTHON_READS_ZSTANDARD = sys.version_info >= (3, 14)


def told(path: Path) -> list[str]:
    return [str(item).removeprefix(f"{path}: ") for item in read_episodes(path)]


def test_a_log_that_was_never_finished_gives_the_samples_that_it_has(tmp_path: Path) -> None:
    path = a_log(tmp_path, a_sample(), header="_journal/start.json")
    assert episodes(path)[0].environment == "colours"


def test_a_log_without_samples_is_told(tmp_path: Path) -> None:
    assert told(a_log(tmp_path)) == ["there are no samples in this log"]
    path = tmp_path / "log.json"
    path.write_text('{"version": 2, "status": "started", "eval": {"task": "colours"}}')
    assert told(path) == ["there are no samples in this log"]


def test_a_log_without_a_header_is_told(tmp_path: Path) -> None:
    why = "this is not a log of Inspect AI: it has no header with `eval`"
    assert told(a_log(tmp_path, a_sample(), header=None)) == [why]
    path = tmp_path / "log.json"
    path.write_text("[]")
    assert told(path) == [why]


@pytest.mark.parametrize("log", [FAILED, COLOURS, EPOCHS])
def test_a_log_that_is_cut_off_is_told(tmp_path: Path, log: Path) -> None:
    path = tmp_path / log.name
    path.write_bytes(log.read_bytes()[:-200])
    (why,) = told(path)
    assert why.startswith(("the log is damaged or was never closed: ", "not JSON: "))


def test_a_damaged_sample_costs_itself_alone(tmp_path: Path) -> None:
    path = a_log(tmp_path, a_sample(), a_sample(), [])
    with ZipFile(path) as archive:
        second = archive.getinfo("samples/2_epoch_1.json")
    content = bytearray(path.read_bytes())
    middle = second.header_offset + second.compress_size // 2
    content[middle : middle + 50] = bytes(50)
    path.write_bytes(content)
    first, *rest = read_episodes(path)
    assert isinstance(first, Episode)
    assert [str(item).removeprefix(f"{path}: ")[:31] for item in rest] == [
        "samples/2_epoch_1.json: damaged",
        "samples/3_epoch_1.json: the sam",
    ]


def test_a_sample_that_is_stored_in_pieces_is_told(tmp_path: Path) -> None:
    path = a_log(tmp_path, a_sample())
    with ZipFile(path, "a") as archive:
        archive.writestr("samples/2_epoch_1/sample.json", "{}")
        archive.writestr("samples/2_epoch_1/messages/0.json", "[]")
    assert told(path)[1:] == [
        "samples/2_epoch_1/sample.json: samples stored in pieces are not read"
    ]


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_of_two_versions_of_a_sample_the_later_counts(tmp_path: Path) -> None:
    path = a_log(tmp_path, a_sample(scores={}))
    with ZipFile(FAILED) as old, ZipFile(path, "a") as new:
        new.writestr("samples/1_epoch_1.json", old.read("samples/sky_epoch_1.json"))
    assert [episode.reward for episode in episodes(path)] == [1.0]


def test_no_more_than_a_sample_is_held_at_a_time(tmp_path: Path) -> None:
    large = a_sample(store={"notes": ["x" * 1000] * 1000})
    path = a_log(tmp_path, *[large] * 20)
    tracemalloc.start()
    count = sum(isinstance(item, Episode) for item in read_episodes(path))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert count == 20
    assert peak < 6_000_000


@pytest.mark.skipif(PYTHON_READS_ZSTANDARD, reason="Python reads zstandard itself")
def test_without_zstandard_a_log_of_today_names_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "zstandard", None)
    with pytest.raises(MissingExtra, match=r"Inspect AI \(\.eval\) needs .* 'ludus-rl\[curate\]'"):
        list(read_episodes(COLOURS))


def test_a_damaged_member_in_zstandard_costs_itself_alone(tmp_path: Path) -> None:
    pytest.importorskip("zstandard")
    path = tmp_path / "log.eval"
    with ZipFile(COLOURS) as archive:
        sky = archive.getinfo("samples/sky_epoch_1.json")
    content = bytearray(COLOURS.read_bytes())
    content[sky.header_offset + 400] ^= 0xFF
    path.write_bytes(content)
    assert [isinstance(item, Episode) for item in read_episodes(path)].count(False) == 1


def test_a_log_that_is_not_there_is_a_users_mistake(tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"cannot be read: No such file"):
        list(read_episodes(tmp_path / "none.eval"))
