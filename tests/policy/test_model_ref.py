"""Resolution of model names."""

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
    """An offline Hub with an adapter in its cache."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(cache))
    monkeypatch.setattr("huggingface_hub.file_download.constants.HF_HUB_CACHE", str(cache))
    repo = cache / f"models--{name.replace('/', '--')}"
    (repo / "refs").mkdir(parents=True)
    (repo / "refs" / "main").write_text("abc")
    return adapter(repo / "snapshots" / "abc", base)


def test_an_existing_folder_wins_over_a_hub_id(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "org" / "name").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    assert resolve_model("org/name") == ModelRef("org/name", ModelKind.FOLDER, "org/name")


def test_a_folder_with_an_adapter_config_is_an_adapter(tmp_path: Path) -> None:
    assert resolve_model(str(adapter(tmp_path, "org/base"))).kind is ModelKind.ADAPTER


def test_a_file_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").touch()
    with pytest.raises(ConfigError, match="is a file"):
        resolve_model(str(tmp_path / "model.safetensors"))


def test_offline_the_hubs_cache_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    assert resolve_model("org/name") == ModelRef(
        "org/name", ModelKind.HUB, "org/name", cache_only=True
    )


def test_a_cached_adapter_is_recognized_offline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = cached_adapter(monkeypatch, tmp_path, "org/tuned", "org/base")
    ref = resolve_model("org/tuned")
    assert ref == ModelRef("org/tuned", ModelKind.ADAPTER, str(folder), cache_only=True)
    assert resolve_base_model(ref).path == "org/base"


def test_an_adapter_names_its_base_model(tmp_path: Path) -> None:
    base = tmp_path / "base"
    base.mkdir()
    ref = resolve_model(str(adapter(tmp_path / "tuned", str(base))))
    assert resolve_base_model(ref) == ModelRef(str(base), ModelKind.FOLDER, str(base))


@pytest.mark.parametrize("base", [None, "", 7])
def test_an_adapter_without_base_model_is_rejected(tmp_path: Path, base: object) -> None:
    with pytest.raises(ConfigError, match="base_model_name_or_path"):
        resolve_base_model(resolve_model(str(adapter(tmp_path, base))))


def test_an_adapter_with_a_missing_base_model_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"adapter over \./gone\."):
        resolve_base_model(resolve_model(str(adapter(tmp_path, "./gone"))))


def test_an_adapter_over_itself_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="names itself"):
        resolve_base_model(resolve_model(str(adapter(tmp_path, str(tmp_path)))))


def test_the_portable_name_is_valid_in_every_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "runs" / "sft").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    assert resolve_model("runs/sft").portable_name == str(tmp_path / "runs" / "sft")
    assert ModelRef("org/name", ModelKind.HUB, "org/name").portable_name == "org/name"
    assert ModelRef("smollm2", ModelKind.FOLDER, str(tmp_path)).portable_name == "smollm2"
