"""Environments in files: `path/to/my_env.py:Class`."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from cli.collect_cli import read_episodes
from ludus_process import run_ludus, served_by_program

from ludus.environment.mixture import parse_mixture
from ludus.environment.registry import find_environment
from ludus.environment.source_file import recorded_name
from ludus.errors import BadEnvironment, ConfigError, EnvironmentNotFound

MINE = "from ludus.envs.catch import Catch\n\n\nclass Mine(Catch):\n    '''{}'''\n"


@pytest.fixture(autouse=True)
def imports() -> Iterator[None]:
    """What a test imports is forgotten after it."""
    path, modules = list(sys.path), set(sys.modules)
    yield
    sys.path[:] = path
    for name in set(sys.modules) - modules:
        if not name.startswith("ludus"):
            del sys.modules[name]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "corner_a.py").write_text(MINE.format("In A."))
    return tmp_path


def test_a_file_is_found_by_every_way_of_writing_its_path(folder: Path) -> None:
    (folder / "x").mkdir()
    for path in ("corner_a.py", "./corner_a.py", f"{folder}/corner_a.py", "x/../corner_a.py"):
        contract = find_environment(f"{path}:Mine")
        assert (contract.description, contract.id) == ("In A.", "corner_a:Mine")
        assert recorded_name(f"{path}:Mine") == "corner_a:Mine"


@pytest.mark.usefixtures("folder")
def test_the_recorded_name_is_found_from_another_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    cls = find_environment("corner_a.py:Mine").cls
    monkeypatch.chdir("/")
    assert find_environment("corner_a:Mine").cls is cls


def test_a_file_in_a_package_may_import_its_neighbours(folder: Path) -> None:
    package = folder / "corner_pkg" / "deep"
    package.mkdir(parents=True)
    for init in (package / "__init__.py", package.parent / "__init__.py"):
        init.write_text("")
    (package / "words.py").write_text("WORD = 'neighbour'\n")
    (package / "env.py").write_text("from .words import WORD\n" + MINE.format("Deep."))
    assert find_environment("corner_pkg/deep/env.py:Mine").id == "corner_pkg.deep.env:Mine"


def test_a_file_may_import_the_file_beside_it(folder: Path) -> None:
    (folder / "b").mkdir()
    (folder / "b" / "corner_words.py").write_text("WORD = 'beside'\n")
    (folder / "b" / "corner_b.py").write_text("import corner_words\n" + MINE.format("B."))
    assert find_environment("b/corner_b.py:Mine").description == "B."


def test_files_of_the_same_name_and_a_name_of_the_standard_library(folder: Path) -> None:
    for name in ("one", "two"):
        (folder / name).mkdir()
        (folder / name / "random.py").write_text(MINE.format(name))
    assert [find_environment(f"{n}/random.py:Mine").description for n in ("one", "two")] == [
        "one",
        "two",
    ]
    assert find_environment("one/random.py:Mine").cls is find_environment("one/random.py:Mine").cls
    assert sys.modules["random"] is random
    with pytest.raises(ConfigError, match="'random:Mine'"):
        parse_mixture("one/random.py:Mine,two/random.py:Mine")


@pytest.mark.parametrize(
    ("spec", "complaint"),
    [
        ("corner_b.py:Mine", "'corner_a.py'"),
        ("corner_a.py:Mien", "'Mine'"),
        ("corner_a.py", "corner_a.py:Mine"),
    ],
)
@pytest.mark.usefixtures("folder")
def test_a_wrong_file_spec_is_answered_with_a_way_on(spec: str, complaint: str) -> None:
    with pytest.raises(EnvironmentNotFound) as caught:
        find_environment(spec)
    assert complaint in str(caught.value)


@pytest.mark.parametrize(
    ("source", "line"),
    [
        ("x = (\n", "corner_bad.py:1: SyntaxError: '(' was never closed"),
        ("import math\n\nmath.sqrt(-1)\n", "corner_bad.py:3: ValueError: math domain error"),
        ("def make():\n    return 1 / 0\n", "corner_bad.py:2 in make: ZeroDivisionError"),
    ],
)
def test_a_file_that_cannot_be_loaded_is_told_with_its_line(
    folder: Path, source: str, line: str
) -> None:
    (folder / "corner_bad.py").write_text(source)
    for spec in ("corner_bad.py:make", "corner_bad:make"):
        with pytest.raises(BadEnvironment) as caught:
            find_environment(spec)
        assert line in str(caught.value)


def test_a_weight_may_follow_a_path_and_a_path_may_hold_an_equals_sign() -> None:
    mix = parse_mixture("lr=0.1/env.py:Mine=3, catch")
    assert mix.specs == ("lr=0.1/env.py:Mine", "catch")
    assert parse_mixture("lr=0.1/env.py:Mine").specs == ("lr=0.1/env.py:Mine",)
    assert str(mix) == "env:Mine=0.75,catch=0.25"


def test_a_run_of_a_file_goes_on_however_its_path_is_written(folder: Path) -> None:
    for path, episodes in (("corner_a.py", "2"), (f"{folder}/corner_a.py", "3")):
        done = run_ludus("collect", f"{path}:Mine", "-n", episodes, "-o", "run", cwd=folder)
        assert done.returncode == 0, done.stderr
    found = read_episodes(folder / "run")
    assert [episode.environment for episode in found] == ["corner_a:Mine"] * 3
    assert all(episode.reward is not None for episode in found)


def test_a_file_is_served_by_worker_processes(folder: Path) -> None:
    with served_by_program("corner_a.py:Mine", "--workers", "2", cwd=folder) as server:
        arguments = ("corner_a.py:Mine", "--base-url", server.url, "-n", "3", "-o", "served")
        done = run_ludus("collect", *arguments, cwd=folder)
    assert done.returncode == 0, done.stderr
    assert {episode.environment for episode in read_episodes(folder / "served")} == {
        "corner_a:Mine"
    }
