"""Environments by name, variant and import path."""

from __future__ import annotations

from pathlib import Path

import pytest

from ludus.environment.registry import find_environment, registered_environments
from ludus.errors import BadEnvironment, EnvironmentNotFound


def test_what_ships_is_registered_like_a_strangers_package() -> None:
    assert {"catch", "echo", "reasoning_gym", "wordle"} <= set(registered_environments())
    assert find_environment("catch").id == "catch"


def test_an_import_path_finds_any_class() -> None:
    assert find_environment("world:Counter").cls.__name__ == "Counter"


def test_a_class_below_the_current_folder_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "my_corner.py").write_text(
        "from ludus.envs.catch import Catch\n\n\nclass Mine(Catch):\n    '''Mine.'''\n"
    )
    monkeypatch.chdir(tmp_path)
    assert find_environment("my_corner:Mine").description == "Mine."


@pytest.mark.parametrize(
    ("spec", "complaint"),
    [
        ("wordel", "Did you mean 'wordle'"),
        ("zzzzzz", "See `ludus envs`"),
        ("reasoning_gym:chain_sums", "Did you mean 'chain_sum'"),
        ("catch:hard", "has no variant 'hard'"),
        ("no_such_package.x:Y", "neither a registered environment nor an importable class"),
        ("world:Countre", "Did you mean 'Counter'"),
    ],
)
def test_a_wrong_spec_is_answered_with_a_way_on(spec: str, complaint: str) -> None:
    with pytest.raises(EnvironmentNotFound, match=complaint):
        find_environment(spec)


def test_a_module_that_cannot_be_imported_is_the_authors_problem(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "broken_corner.py").write_text("import a_package_that_is_not_there\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(BadEnvironment, match="a_package_that_is_not_there"):
        find_environment("broken_corner:Anything")
    with pytest.raises(BadEnvironment, match="reset and step"):
        find_environment("pathlib:Path")
