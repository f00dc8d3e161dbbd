"""Weights are known by what is in them, wherever and whenever they were written."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from students import of_family

from ludus.policy.agent import PolicyAgent
from ludus.policy.fingerprint import _sample_chunks, fingerprint
from ludus.policy.load import load
from policy.models import adapted, saved

BIG = 300_000_000


def marked(folder: Path) -> str:
    found = fingerprint(str(folder))
    assert found is not None
    return found


def test_a_copy_has_the_same_and_another_training_has_not(tmp_path: Path) -> None:
    first = marked(saved(tmp_path / "model"))
    shutil.copytree(tmp_path / "model", tmp_path / "copy", copy_function=shutil.copyfile)
    (tmp_path / "copy" / "README.md").write_text("New words.")
    assert marked(tmp_path / "copy") == first
    saved(tmp_path / "model", seed=1)
    assert marked(tmp_path / "model") != first


@pytest.mark.parametrize("file", ["tokenizer.json", "tokenizer_config.json", "chat_template.jinja"])
def test_another_way_to_speak_to_the_same_weights_is_another_model(
    file: str, tmp_path: Path
) -> None:
    first = marked(saved(tmp_path))
    (tmp_path / file).write_text((tmp_path / file).read_text() + " ")
    assert marked(tmp_path) != first


def test_an_adapter_is_told_by_its_own_weights_and_by_those_below(tmp_path: Path) -> None:
    base = saved(tmp_path / "base")
    first = marked(adapted(tmp_path / "adapter", base))
    assert marked(tmp_path / "adapter") == first
    adapted(tmp_path / "adapter", base, seed=1)
    second = marked(tmp_path / "adapter")
    saved(base, seed=1)
    assert len({first, second, marked(tmp_path / "adapter")}) == 3


def test_adapters_that_go_over_each_other_are_no_endless_work(tmp_path: Path) -> None:
    for one, other in (("a", "b"), ("b", "a")):
        (tmp_path / one).mkdir()
        config = f'{{"base_model_name_or_path": "{tmp_path / other}"}}'
        (tmp_path / one / "adapter_config.json").write_text(config)
    assert marked(tmp_path / "a") != marked(tmp_path / "b")


def test_a_big_file_is_looked_into_closely_and_not_read_as_a_whole(tmp_path: Path) -> None:
    file = tmp_path / "model.gguf"
    with file.open("wb") as stream:
        stream.truncate(BIG)
    found = {marked(file)}
    assert sum(map(len, _sample_chunks(file))) < BIG / 50
    for start in (0, 123_456_789, BIG - 300_000):
        with file.open("r+b") as stream:
            stream.seek(start)
            stream.write(b"x" * 300_000)
        found.add(marked(file))
    assert len(found) == 4, "a matrix of 300 kB is not missed"


@pytest.mark.parametrize("name", ["org/name", "./nowhere", "empty", ""])
def test_what_is_not_on_this_disk_has_none(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path)
    assert fingerprint(name) is None


def test_smollm2_is_always_the_same_and_is_not_fetched_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LUDUS_CACHE", str(tmp_path / "cache"))
    assert fingerprint("smollm2") == fingerprint("smollm2")
    assert not (tmp_path / "cache").exists()


def test_an_agent_tells_of_its_weights_without_reading_them(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"no weights at all")
    told = PolicyAgent(str(tmp_path), temperature=0.0).describe()
    assert told["weights"] == marked(tmp_path)
    assert "weights" not in PolicyAgent("org/name").describe()


def test_a_policy_that_is_loaded_remembers_what_it_was_read_from(tmp_path: Path) -> None:
    before = marked(saved(tmp_path, of_family("qwen3")))
    policy = load(str(tmp_path), device="cpu", dtype="float32")
    saved(tmp_path, of_family("qwen3"), seed=1)
    assert PolicyAgent(policy).describe()["weights"] == before
