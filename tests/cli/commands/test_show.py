"""`ludus show`: runs by name, data sets, evaluations and trained models."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from curation.attempts import to_parquet

from cli.collect_cli import collect, error_line
from cli.curate_cli import curate, ludus, make_episode, stdout_of, write_run
from cli.in_process import Runner
from ludus.curation import CurateConfig, pipeline
from ludus.curation.config import OutputKind
from ludus.errors import RunError


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with an older and a newer run."""
    home = tmp_path_factory.mktemp("home")
    for seed in ("0", "1"):
        stdout_of(collect("catch", "-n", "3", "--seed", seed, cwd=home))
    for time, run in enumerate(sorted((home / "runs").iterdir())):
        os.utime(run / "episodes.jsonl", (time, time))
    return home


def runs(home: Path) -> list[str]:
    """Paths of the runs, the newest last."""
    folders = (home / "runs").iterdir()
    ordered = sorted(folders, key=lambda run: (run / "episodes.jsonl").stat().st_mtime)
    return [f"runs/{run.name}" for run in ordered]


def test_a_run_is_shown_by_its_name_and_as_the_last_one(home: Path) -> None:
    old, new = runs(home)
    shown = stdout_of(ludus("show", new, "2", cwd=home))
    assert stdout_of(ludus("show", "last", "2", cwd=home)) == shown
    assert stdout_of(ludus("show", Path(new).name, "2", cwd=home)) == shown
    assert stdout_of(ludus("show", old, "2", cwd=home)) != shown
    assert f"'{Path(new).name}'" in error_line(ludus("show", "catch", cwd=home))


def test_of_several_runs_the_newest_is_shown(home: Path) -> None:
    old, new = runs(home)
    for given in ([old, new], [new, old]):
        done = ludus("show", *given, "2", cwd=home)
        assert done.returncode == 0
        assert done.stdout == stdout_of(ludus("show", new, "2", cwd=home))
        assert f"showing the newest, {new}" in done.stderr


def test_curate_accepts_run_names_and_can_be_repeated(home: Path) -> None:
    by_path = ("--keep-unscored", "--no-dedupe", "-o", "data/path")
    for _ in range(2):
        stdout_of(curate(*runs(home), *by_path, cwd=home))
    stdout_of(curate("last", "--no-dedupe", "-o", "data/last", cwd=home))
    assert (home / "data/path/train.jsonl").read_text().count("\n") == 6
    assert (home / "data/last/train.jsonl").read_text().count("\n") == 3


def show_output(*arguments: str) -> str:
    """The output of `ludus show`, run in this process."""
    done = Runner().invoke(["show", *arguments])
    if done.exception is not None:
        raise done.exception
    assert done.exit_code == 0
    return done.stdout


def test_a_row_of_a_data_set_is_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_run(tmp_path / "run", make_episode("good", turns=2), make_episode("bad", reward=0.0))
    forms: tuple[OutputKind, ...] = ("sft", "dpo", "openenv", "nemo-gym", "nemo-gym-input")
    for to in forms:
        pipeline.curate([Path("run")], Path(to), CurateConfig(to=to))
    sft = show_output("sft")
    assert "It is about owl." in sft and 'guess({"word": "good1"})' in sft and "reward 1" in sft
    assert show_output("sft/train.jsonl", "good").split("\n")[1:] == sft.split("\n")[1:]
    dpo = show_output("dpo", "0")
    assert dpo.index("chosen (reward 1)") < dpo.index("good1") < dpo.index("rejected (reward 0)")
    assert "good1" in show_output("openenv") and "good1" in show_output("nemo-gym")
    assert "It is about owl." in show_output("nemo-gym-input")
    line = Path("sft/train.jsonl").read_text().splitlines()[1]
    assert json.loads(show_output("sft", "1", "--json")) == json.loads(line)
    with pytest.raises(RunError, match="0 to 1"):
        show_output("sft", "7")


def test_an_evaluation_is_shown_with_its_candidates(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    command = ("eval", "catch", "-c", "oracle", "-c", "random", "-n", "2", "-o", "ev")
    assert ludus(*command).returncode == 0
    output = show_output("ev")
    assert "oracle" in output and "Mean reward" in output and "ludus show ev/oracle 0" in output
    with pytest.raises(RunError, match="`ludus show ev/random 1`"):
        show_output("ev", "1")
    assert "catch" in show_output("ev/random", "1")


def test_an_unshowable_target_suggests_a_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_run(tmp_path / "run", make_episode("one"))
    pipeline.curate([Path("run")], Path("data"), CurateConfig())
    to_parquet(Path("data"))
    with pytest.raises(RunError, match="ludus curate"):
        show_output("data")
    Path("empty").mkdir()
    with pytest.raises(RunError, match="empty"):
        show_output("empty")
    with pytest.raises(RunError, match="runs/"):
        show_output("last")


def test_an_episode_shows_its_random_turns_and_its_tutor_and_a_row_what_has_no_loss(
    tmp_path: Path,
) -> None:
    flags = ("--provider", "random", "--tutor", "oracle", "--explore", "1", "-o", "run")
    stdout_of(collect("guess_number", "-n", "1", *flags, cwd=tmp_path))
    shown = [line.strip() for line in stdout_of(ludus("show", "run", cwd=tmp_path)).splitlines()]
    turns = shown.count("assistant")
    assert turns > 1 and shown.count("tutor") == shown.count("(a random action)") == turns
    stdout_of(curate("run", "-o", "rows", cwd=tmp_path))
    last = stdout_of(ludus("show", "rows", "1", cwd=tmp_path)).splitlines()
    assert last.count("assistant") == 1 and last.count("assistant (no loss)") == 1


def test_a_name_that_no_file_can_have_is_one_line(tmp_path: Path) -> None:
    assert "too long" in error_line(ludus("show", "x" * 300, cwd=tmp_path))
