"""What may be asked for on the Hub, and what is a path."""

from pathlib import Path

import pytest

from ludus.data.hub import is_hub_id


@pytest.mark.parametrize("name", ["Qwen/Qwen3-0.6B", "gpt2", "my-org/data.set", "org/runs"])
def test_ids_are_asked_for(name: str) -> None:
    assert is_hub_id(name)


@pytest.mark.parametrize(
    "name",
    ["", "/abs", "./models", "../x", "~/x", "a/b/c", "models/x", "data/x", "org/", "org/m.gguf"],
)
def test_paths_are_not(name: str) -> None:
    assert not is_hub_id(name, file_suffixes=(".gguf",))


def test_a_first_part_that_is_a_folder_here_makes_it_a_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert is_hub_id("trained/wordle")
    (tmp_path / "trained").mkdir()
    assert not is_hub_id("trained/wordle")
