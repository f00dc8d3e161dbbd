"""The folder that a data set is written into: all of it or nothing, and nothing of others'."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from curation.attempts import attempt, rows, run_of
from ludus.curation import CurateConfig, FilterConfig, curate
from ludus.errors import ConfigError, RunError


class Stopped(Exception):
    """Raised in the middle of the work."""


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return run_of(tmp_path / "run", *(attempt(f"{n}", n / 10) for n in range(10)))


def everything(folder: Path) -> dict[str, bytes]:
    files = (file for file in folder.rglob("*") if file.is_file())
    return {str(file.relative_to(folder)): file.read_bytes() for file in files}


@pytest.mark.parametrize("test", [None, 0.3])
@pytest.mark.parametrize("explain", [False, True])
def test_a_folder_holds_the_rows_and_what_they_are_and_nothing_else(
    tmp_path: Path, run: Path, test: float | None, explain: bool
) -> None:
    out = tmp_path / "deep" / "out"
    curate([run], out, CurateConfig(test=test), explain=explain)
    expected = {"train.jsonl", "README.md", "curation.json"}
    expected |= {"test.jsonl"} if test else set()
    expected |= {"left_out.jsonl"} if explain else set()
    assert set(everything(out)) == {file.name for file in out.iterdir()} == expected


def test_a_data_set_is_not_written_over_unasked(tmp_path: Path, run: Path) -> None:
    out = tmp_path / "out"
    curate([run], out, CurateConfig())
    before = everything(out)
    with pytest.raises(RunError, match=r"holds a data set already\. Use --overwrite"):
        curate([run], out, CurateConfig(test=0.5))
    assert everything(out) == before


@pytest.mark.parametrize("format", ["jsonl", "parquet"])
def test_the_same_again_is_written_over_also_from_more_runs(
    tmp_path: Path, run: Path, format: Any
) -> None:
    out, more = tmp_path / "out", run_of(tmp_path / "more", attempt("new"))
    wanted = CurateConfig(selection=FilterConfig(min_reward=0.2), format=format)
    curate([run], out, wanted)
    before = everything(out)
    curate([run], out, wanted)
    assert everything(out) == before
    assert curate([run, more], out, wanted).episodes == 11
    with pytest.raises(RunError, match="--overwrite"):
        curate([run], out, wanted)


def test_the_same_again_does_not_replace_rows_that_somebody_changed(
    tmp_path: Path, run: Path
) -> None:
    out = tmp_path / "out"
    curate([run], out, CurateConfig())
    (out / "train.jsonl").write_text("mine\n")
    with pytest.raises(RunError, match="--overwrite"):
        curate([run], out, CurateConfig())
    assert (out / "train.jsonl").read_text() == "mine\n"


@pytest.mark.parametrize("first", ["jsonl", "parquet", "datasets"])
@pytest.mark.parametrize("second", ["jsonl", "parquet", "datasets"])
def test_what_is_written_over_leaves_nothing_of_the_one_before(
    tmp_path: Path, run: Path, first: Any, second: Any
) -> None:
    out = tmp_path / "out"
    curate([run], out, CurateConfig(test=0.5, format=first), explain=True)
    curate([run], out, CurateConfig(format=second), overwrite=True)
    curate([run], tmp_path / "fresh", CurateConfig(format=second))
    assert set(everything(out)) == set(everything(tmp_path / "fresh"))


def test_a_file_of_the_user_s_beside_a_data_set_stays(tmp_path: Path, run: Path) -> None:
    out = tmp_path / "out"
    curate([run], out, CurateConfig())
    (out / "notes.txt").write_text("mine")
    curate([run], out, CurateConfig(), overwrite=True)
    assert (out / "notes.txt").read_text() == "mine"


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_folder_that_is_not_ours_is_never_touched(
    tmp_path: Path, run: Path, overwrite: bool
) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "train.jsonl").write_text("precious\n")
    (out / "zebra").write_text("too")
    with pytest.raises(RunError, match=r"is not empty \(train.jsonl and 1 more\) and holds no"):
        curate([run], out, CurateConfig(), overwrite=overwrite)
    assert everything(out) == {"train.jsonl": b"precious\n", "zebra": b"too"}


def test_a_run_is_no_place_for_a_data_set(tmp_path: Path, run: Path) -> None:
    before = everything(run)
    with pytest.raises(RunError, match="holds no data set of Ludus"):
        curate([run], run, CurateConfig(), overwrite=True)
    assert everything(run) == before


def test_a_file_is_no_folder(tmp_path: Path, run: Path) -> None:
    (tmp_path / "out").write_text("a file")
    with pytest.raises(RunError, match="is a file, and a data set needs a folder"):
        curate([run], tmp_path / "out", CurateConfig(), overwrite=True)
    with pytest.raises(RunError, match="cannot be written: Not a directory"):
        curate([run], tmp_path / "out" / "below", CurateConfig())


STEPS = ("reading", "choosing", "comparing prompts", "splitting", "writing rows", "converting")


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("error", [Stopped, KeyboardInterrupt])
def test_whoever_stops_the_work_leaves_nothing_behind(
    tmp_path: Path, run: Path, step: str, error: type[BaseException]
) -> None:
    out, seen = tmp_path / "out", []

    def watch(what: str, done: int, total: int | None) -> None:
        seen.append(what)
        if what == step:
            raise error

    with pytest.raises(error):
        curate([run], out, CurateConfig(test=0.5, near_prompts=0.9), on_progress=watch)
    assert seen[-1] == step and not out.exists()


@pytest.mark.parametrize("step", STEPS)
def test_a_data_set_that_was_to_be_written_over_is_still_whole(
    tmp_path: Path, run: Path, step: str
) -> None:
    out = tmp_path / "out"
    curate([run], out, CurateConfig(test=0.5))
    before = everything(out)

    def watch(what: str, done: int, total: int | None) -> None:
        if what == step:
            raise Stopped

    with pytest.raises(Stopped):
        wanted = CurateConfig(test=0.2, near_prompts=0.9, format="datasets")
        curate([run], out, wanted, overwrite=True, on_progress=watch)
    assert everything(out) == before


def test_a_refusal_leaves_nothing_behind_either(tmp_path: Path, run: Path) -> None:
    with pytest.raises(RunError, match=r"Nothing is left of 10 episodes: min-reward 10\."):
        curate([run], tmp_path / "out", CurateConfig(selection=FilterConfig(min_reward=2.0)))
    assert not (tmp_path / "out").exists()


def test_what_a_killed_run_left_is_swept_away(tmp_path: Path, run: Path) -> None:
    out = tmp_path / "out"
    (out / ".curating-abc" / "work").mkdir(parents=True)
    (out / ".curating-abc" / "train.jsonl").write_text("half")
    curate([run], out, CurateConfig())
    assert {file.name for file in out.iterdir()} == {"train.jsonl", "README.md", "curation.json"}


def test_runs_are_folders_or_files_and_each_is_named_once(tmp_path: Path, run: Path) -> None:
    curate([run / "episodes.jsonl"], tmp_path / "out", CurateConfig())
    assert len(rows(tmp_path / "out" / "train.jsonl")) == 10
    with pytest.raises(ConfigError, match="is named twice"):
        curate([run, run / "episodes.jsonl"], tmp_path / "twice", CurateConfig())
    with pytest.raises(RunError, match=r"it has no episodes\.jsonl"):
        curate([tmp_path], tmp_path / "twice", CurateConfig())
    with pytest.raises(RunError, match="There is no run"):
        curate([tmp_path / "gone"], tmp_path / "twice", CurateConfig())
    assert not (tmp_path / "twice").exists()


def test_a_run_without_an_episode_is_told(tmp_path: Path) -> None:
    empty = run_of(tmp_path / "empty")
    with pytest.raises(RunError, match="There are no episodes in these runs yet"):
        curate([empty], tmp_path / "out", CurateConfig())
