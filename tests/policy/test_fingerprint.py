"""Fingerprints of local models."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from tiny_tokenizers import of_family

from ludus.policy.agent import PolicyAgent
from ludus.policy.load import load
from ludus.policy.model_ref import fingerprint_model, sample_chunks
from policy.models import adapted, saved

FILE_SIZE = 300_000_000


def fingerprint_of(folder: Path) -> str:
    value = fingerprint_model(str(folder))
    assert value is not None
    return value


def test_a_copy_has_the_same_fingerprint_and_a_retrained_model_another(tmp_path: Path) -> None:
    first = fingerprint_of(saved(tmp_path / "model"))
    shutil.copytree(tmp_path / "model", tmp_path / "copy", copy_function=shutil.copyfile)
    (tmp_path / "copy" / "README.md").write_text("New words.")
    assert fingerprint_of(tmp_path / "copy") == first
    saved(tmp_path / "model", seed=1)
    assert fingerprint_of(tmp_path / "model") != first


@pytest.mark.parametrize("file", ["tokenizer.json", "tokenizer_config.json", "chat_template.jinja"])
def test_tokenizer_files_change_the_fingerprint(file: str, tmp_path: Path) -> None:
    first = fingerprint_of(saved(tmp_path))
    (tmp_path / file).write_text((tmp_path / file).read_text() + " ")
    assert fingerprint_of(tmp_path) != first


def test_an_adapters_fingerprint_covers_its_base_model(tmp_path: Path) -> None:
    base = saved(tmp_path / "base")
    first = fingerprint_of(adapted(tmp_path / "adapter", base))
    assert fingerprint_of(tmp_path / "adapter") == first
    adapted(tmp_path / "adapter", base, seed=1)
    second = fingerprint_of(tmp_path / "adapter")
    saved(base, seed=1)
    assert len({first, second, fingerprint_of(tmp_path / "adapter")}) == 3


def test_circular_adapters_have_a_fingerprint(tmp_path: Path) -> None:
    for one, other in (("a", "b"), ("b", "a")):
        (tmp_path / one).mkdir()
        config = f'{{"base_model_name_or_path": "{tmp_path / other}"}}'
        (tmp_path / one / "adapter_config.json").write_text(config)
    assert fingerprint_of(tmp_path / "a") != fingerprint_of(tmp_path / "b")


def test_a_large_file_is_sampled_densely_but_not_read_completely(tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors"
    with file.open("wb") as stream:
        stream.truncate(FILE_SIZE)
    fingerprints = {fingerprint_of(tmp_path)}
    assert sum(map(len, sample_chunks(file))) < FILE_SIZE / 50
    for start in (0, 123_456_789, FILE_SIZE - 300_000):
        with file.open("r+b") as stream:
            stream.seek(start)
            stream.write(b"x" * 300_000)
        fingerprints.add(fingerprint_of(tmp_path))
    assert len(fingerprints) == 4, "every change of 300 kB is noticed"


@pytest.mark.parametrize("name", ["org/name", "./nowhere", "empty", ""])
def test_models_that_are_not_local_have_no_fingerprint(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path)
    assert fingerprint_model(name) is None


def test_the_fingerprint_of_smollm2_needs_no_download(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LUDUS_CACHE", str(tmp_path / "cache"))
    assert fingerprint_model("smollm2") == fingerprint_model("smollm2")
    assert not (tmp_path / "cache").exists()


def test_an_agent_describes_its_weights_without_loading_them(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"no weights at all")
    description = PolicyAgent(str(tmp_path), temperature=0.0).describe()
    assert description["weights"] == fingerprint_of(tmp_path)
    assert "weights" not in PolicyAgent("org/name").describe()


def test_a_loaded_policy_keeps_the_fingerprint_of_its_files(tmp_path: Path) -> None:
    before = fingerprint_of(saved(tmp_path, of_family("qwen3")))
    policy = load(str(tmp_path), device="cpu", dtype="float32")
    saved(tmp_path, of_family("qwen3"), seed=1)
    assert PolicyAgent(policy).describe()["weights"] == before
