"""The output folder: written atomically, without touching other files."""

from __future__ import annotations

from pathlib import Path

import pytest

from curation.attempts import attempt, read_rows, write_run
from ludus.curation import CurateConfig, curate
from ludus.data.files import LOCK_FILE
from ludus.errors import ConfigError, RunError


class Stopped(Exception):
    """Raised in the middle of the work."""


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return write_run(tmp_path / "run", *(attempt(f"{n}", n / 10) for n in range(10)))


def everything(folder: Path) -> dict[str, bytes]:
    files = (file for file in folder.rglob("*") if file.is_file())
    return {str(file.relative_to(folder)): file.read_bytes() for file in files}


@pytest.mark.parametrize("test", [None, 0.3])
@pytest.mark.parametrize("explain", [False, True])
def test_files_of_a_data_set(tmp_path: Path, run: Path, test: float | None, explain: bool) -> None:
    out = tmp_path / "deep" / "out"
    curate([run], out, CurateConfig(test_size=test), explain=explain)
    expected = {"train.jsonl", "README.md", "curation.json"}
    expected |= {"test.jsonl"} if test else set()
    expected |= {"left_out.jsonl"} if explain else set()
    assert set(everything(out)) == {file.name for file in out.iterdir()} == expected


def test_a_data_set_is_not_overwritten_without_overwrite(tmp_path: Path, run: Path) -> None:
    out = tmp_path / "out"
    curate([run], out, CurateConfig())
    before = everything(out)
    with pytest.raises(RunError, match="`overwrite`"):
        curate([run], out, CurateConfig(test_size=0.5))
    assert everything(out) == before


def test_the_same_configuration_overwrites_also_with_more_runs(tmp_path: Path, run: Path) -> None:
    out, more = tmp_path / "out", write_run(tmp_path / "more", attempt("new"))
    wanted = CurateConfig(min_reward=0.2)
    curate([run], out, wanted)
    before = everything(out)
    curate([run], out, wanted)
    assert everything(out) == before
    assert curate([run, more], out, wanted).episodes == 11
    with pytest.raises(RunError, match="`overwrite`"):
        curate([run], out, wanted)


def test_the_same_configuration_does_not_overwrite_edited_rows(tmp_path: Path, run: Path) -> None:
    out = tmp_path / "out"
    curate([run], out, CurateConfig())
    (out / "train.jsonl").write_text("mine\n")
    with pytest.raises(RunError, match="`overwrite`"):
        curate([run], out, CurateConfig())
    assert (out / "train.jsonl").read_text() == "mine\n"


def test_overwriting_removes_all_previous_files(tmp_path: Path, run: Path) -> None:
    out = tmp_path / "out"
    curate([run], out, CurateConfig(test_size=0.5), explain=True)
    curate([run], out, CurateConfig(), overwrite=True)
    curate([run], tmp_path / "fresh", CurateConfig())
    assert set(everything(out)) == set(everything(tmp_path / "fresh"))


def test_other_files_beside_a_data_set_stay(tmp_path: Path, run: Path) -> None:
    out = tmp_path / "out"
    curate([run], out, CurateConfig())
    (out / "notes.txt").write_text("mine")
    curate([run], out, CurateConfig(), overwrite=True)
    assert (out / "notes.txt").read_text() == "mine"


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_folder_that_is_no_data_set_is_not_touched(
    tmp_path: Path, run: Path, overwrite: bool
) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "train.jsonl").write_text("precious\n")
    (out / "zebra").write_text("too")
    with pytest.raises(RunError, match=r"train.jsonl and 1 more"):
        curate([run], out, CurateConfig(), overwrite=overwrite)
    assert everything(out) == {"train.jsonl": b"precious\n", "zebra": b"too"}


def test_a_run_folder_is_not_overwritten(tmp_path: Path, run: Path) -> None:
    before = everything(run)
    with pytest.raises(RunError, match="not empty"):
        curate([run], run, CurateConfig(), overwrite=True)
    assert everything(run) == before


def test_the_output_must_not_be_a_file(tmp_path: Path, run: Path) -> None:
    (tmp_path / "out").write_text("a file")
    with pytest.raises(RunError, match="is a file"):
        curate([run], tmp_path / "out", CurateConfig(), overwrite=True)
    with pytest.raises(RunError, match="Not a directory"):
        curate([run], tmp_path / "out" / "below", CurateConfig())


PHASES = ("reading", "filtering", "splitting", "writing rows")


@pytest.mark.parametrize("step", PHASES)
@pytest.mark.parametrize("error", [Stopped, KeyboardInterrupt])
def test_an_interrupted_run_leaves_nothing_behind(
    tmp_path: Path, run: Path, step: str, error: type[BaseException]
) -> None:
    out, seen = tmp_path / "out", []

    def interrupt(phase: str, done: int, total: int | None) -> None:
        seen.append(phase)
        if phase == step:
            raise error

    with pytest.raises(error):
        curate([run], out, CurateConfig(test_size=0.5), progress=interrupt)
    assert seen[-1] == step and not out.exists()


@pytest.mark.parametrize("step", PHASES)
def test_an_interrupted_overwrite_keeps_the_previous_data_set(
    tmp_path: Path, run: Path, step: str
) -> None:
    out = tmp_path / "out"
    curate([run], out, CurateConfig(test_size=0.5))
    before = everything(out)

    def interrupt(phase: str, done: int, total: int | None) -> None:
        if phase == step:
            raise Stopped

    with pytest.raises(Stopped):
        wanted = CurateConfig(test_size=0.2)
        curate([run], out, wanted, overwrite=True, progress=interrupt)
    assert everything(out) == before


def test_a_failed_run_leaves_nothing_behind(tmp_path: Path, run: Path) -> None:
    with pytest.raises(RunError, match=r"min-reward 10"):
        curate([run], tmp_path / "out", CurateConfig(min_reward=2.0))
    assert not (tmp_path / "out").exists()


def test_a_second_curate_into_the_same_folder_raises(tmp_path: Path, run: Path) -> None:
    out, refused = tmp_path / "out", []

    def curate_again(phase: str, done: int, total: int | None) -> None:
        with pytest.raises(RunError, match="Another process is writing") as error:
            curate([run], out, CurateConfig(test_size=0.5), overwrite=True)
        refused.append(error)

    curate([run], out, CurateConfig(), progress=curate_again)
    assert refused and set(everything(out)) == {"train.jsonl", "README.md", "curation.json"}
    (out / LOCK_FILE).touch()  # As a killed process leaves it.
    curate([run], out, CurateConfig())
    assert not (out / LOCK_FILE).exists()


def test_drafts_of_killed_processes_are_removed(tmp_path: Path, run: Path) -> None:
    out = tmp_path / "out"
    (out / ".curating-abc" / "work").mkdir(parents=True)
    (out / ".curating-abc" / "train.jsonl").write_text("half")
    curate([run], out, CurateConfig())
    assert {file.name for file in out.iterdir()} == {"train.jsonl", "README.md", "curation.json"}


def test_runs_are_folders_or_files_and_given_once(tmp_path: Path, run: Path) -> None:
    curate([run / "episodes.jsonl"], tmp_path / "out", CurateConfig())
    assert len(read_rows(tmp_path / "out" / "train.jsonl")) == 10
    with pytest.raises(ConfigError, match="twice"):
        curate([run, run / "episodes.jsonl"], tmp_path / "twice", CurateConfig())
    with pytest.raises(RunError, match=r"episodes\.jsonl"):
        curate([tmp_path], tmp_path / "twice", CurateConfig())
    with pytest.raises(RunError, match="gone"):
        curate([tmp_path / "gone"], tmp_path / "twice", CurateConfig())
    assert not (tmp_path / "twice").exists()


def test_a_run_without_episodes_raises(tmp_path: Path) -> None:
    empty = write_run(tmp_path / "empty")
    with pytest.raises(RunError, match="no episodes"):
        curate([empty], tmp_path / "out", CurateConfig())
