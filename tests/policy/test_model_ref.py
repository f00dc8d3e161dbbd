"""What a model's name means, or one line that says that it means nothing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ludus.errors import ConfigError
from ludus.policy.model_ref import ModelKind, ModelRef, resolve_base_model, resolve_model


def adapter(folder: Path, base: object) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": base}))
    return folder


def cached_adapter(monkeypatch: pytest.MonkeyPatch, cache: Path, name: str, base: str) -> Path:
    """The Hub's cache with an adapter in it, and no Hub."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(cache))
    monkeypatch.setattr("huggingface_hub.file_download.constants.HF_HUB_CACHE", str(cache))
    home = cache / f"models--{name.replace('/', '--')}"
    (home / "refs").mkdir(parents=True)
    (home / "refs" / "main").write_text("abc")
    return adapter(home / "snapshots" / "abc", base)


def test_a_folder_is_meant_where_one_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "org" / "name").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    assert resolve_model("org/name") == ModelRef("org/name", ModelKind.FOLDER, "org/name")


def test_a_folder_with_an_adapter_is_one(tmp_path: Path) -> None:
    assert resolve_model(str(adapter(tmp_path, "org/base"))).kind is ModelKind.ADAPTER


@pytest.mark.parametrize("name", ["model.gguf", "MODEL.GGUF"])
def test_a_gguf_file_is_known_by_its_ending(tmp_path: Path, name: str) -> None:
    (tmp_path / name).touch()
    assert resolve_model(str(tmp_path / name)).kind is ModelKind.GGUF


def test_another_file_is_no_model(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").touch()
    with pytest.raises(ConfigError, match=r"is a file\. Name the model's folder, a \.gguf file"):
        resolve_model(str(tmp_path / "model.safetensors"))


def test_without_the_hub_its_cache_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    assert resolve_model("org/name") == ModelRef(
        "org/name", ModelKind.HUB, "org/name", cache_only=True
    )


def test_an_adapter_in_the_cache_of_the_hub_is_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = cached_adapter(monkeypatch, tmp_path, "org/tuned", "org/base")
    found = resolve_model("org/tuned")
    assert found == ModelRef("org/tuned", ModelKind.ADAPTER, str(folder), cache_only=True)
    assert resolve_base_model(found).path == "org/base"


def test_an_adapter_says_over_which_model_it_goes(tmp_path: Path) -> None:
    base = tmp_path / "base"
    base.mkdir()
    over = resolve_model(str(adapter(tmp_path / "tuned", str(base))))
    assert resolve_base_model(over) == ModelRef(str(base), ModelKind.FOLDER, str(base))


@pytest.mark.parametrize("base", [None, "", 7])
def test_an_adapter_over_nothing_is_one_line(tmp_path: Path, base: object) -> None:
    with pytest.raises(ConfigError, match="does not say over which model it goes"):
        resolve_base_model(resolve_model(str(adapter(tmp_path, base))))


def test_an_adapter_whose_base_is_gone_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"is an adapter over \./gone\. There is no model"):
        resolve_base_model(resolve_model(str(adapter(tmp_path, "./gone"))))


def test_an_adapter_over_itself_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="goes over itself"):
        resolve_base_model(resolve_model(str(adapter(tmp_path, str(tmp_path)))))


def test_what_an_adapter_records_is_found_from_every_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "runs" / "sft").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    assert resolve_model("runs/sft").portable_name == str(tmp_path / "runs" / "sft")
    assert ModelRef("org/name", ModelKind.HUB, "org/name").portable_name == "org/name"
    assert ModelRef("smollm2", ModelKind.FOLDER, str(tmp_path)).portable_name == "smollm2"
