"""Upload of a trained model."""

from __future__ import annotations

from pathlib import Path

import pytest
from policy.models import saved

from ludus.errors import ConfigError, PublishFailed
from ludus.publish.hub_upload import (
    MODEL,
    check_upload_target,
    model_files,
    open_repo,
    push_model,
)
from publish.fake_hub import TOKEN, fake_hub

CARD = "---\npipeline_tag: text-generation\n---\n# A model\n"


@pytest.fixture(autouse=True)
def _logged_in(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    for name, value in {"HF_HUB_OFFLINE": False, "HF_HUB_DISABLE_XET": True}.items():
        monkeypatch.setattr(f"huggingface_hub.constants.{name}", value)


def write_trained_model(folder: Path) -> Path:
    """Write a model with the other files of a run, and private ones."""
    saved(folder)
    for name in ("training.json", "log.jsonl", "loss.png", "README.md"):
        (folder / name).write_text("{}")
    for name in ("checkpoints/checkpoint-1/model.safetensors", "notes.txt", ".training.json.draft"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("mine")
    (folder / "adapter").mkdir()
    (folder / "adapter" / "adapter_model.safetensors").write_text("small")
    return folder


def test_pushed_files_can_be_loaded(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder = write_trained_model(tmp_path / "model")
    capfd.readouterr()
    with fake_hub(large=10_000) as hub:
        url = push_model(folder, "ada/player", card=CARD, endpoint=hub.url)
    assert url == f"{hub.url}/ada/player" and hub.kinds == {"ada/player": "model"}
    assert capfd.readouterr() == ("", "")
    assert hub.files["README.md"] == CARD.encode(), "the card is the one that was given"
    assert {"training.json", "log.jsonl", "loss.png"} < hub.files.keys()
    assert "adapter/adapter_model.safetensors" in hub.files
    assert not any(data == b"mine" for data in hub.files.values())
    assert hub.objects, "weights go to the large file storage"
    assert hub.messages == ["The model in model"]

    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    pulled = hub.write_to(tmp_path / "pulled")
    there = AutoModelForCausalLM.from_pretrained(pulled).state_dict()
    here = AutoModelForCausalLM.from_pretrained(folder).state_dict()
    assert all((there[name] == here[name]).all() for name in here)
    assert AutoTokenizer.from_pretrained(pulled)("a word").input_ids


def test_stale_files_of_an_older_model_are_deleted(tmp_path: Path) -> None:
    folder = write_trained_model(tmp_path / "model")
    old = {
        name: b"old"
        for name in ("model-00001-of-00002.safetensors", "model.safetensors.index.json")
    }
    theirs = {
        **{".gitattributes": b"lfs", "figures/plot.png": b"picture", "LICENSE": b"free"},
        **{"eval_results.json": b"{}", "notes.json": b"{}", "reward.png": b"picture"},
    }
    with fake_hub(files={**old, **theirs, "config.json": b"old"}) as hub:
        push_model(folder, "ada/player", card=CARD, endpoint=hub.url)
    assert hub.files.keys() == {"README.md", *theirs, *model_files(folder)}
    assert hub.files["config.json"] == (folder / "config.json").read_bytes()


def test_without_a_card_the_one_on_the_hub_stays(tmp_path: Path) -> None:
    folder = write_trained_model(tmp_path / "model")
    with fake_hub(files={"README.md": b"written there"}) as hub:
        push_model(folder, "ada/player", card="", endpoint=hub.url)
    assert hub.files["README.md"] == b"written there"


def test_folder_without_weights_is_rejected_offline(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    with fake_hub() as hub, pytest.raises(PublishFailed, match=r"no \*\.safetensors"):
        push_model(tmp_path, "ada/player", card=CARD, endpoint=hub.url)
    assert hub.requests == []


def test_failed_upload_names_the_retry_command(tmp_path: Path) -> None:
    folder = write_trained_model(tmp_path / "model")
    with (
        fake_hub(fail={"commit": 503}) as hub,
        pytest.raises(PublishFailed, match=r"HTTP 503.*again"),
    ):
        push_model(folder, "ada/player", card=CARD, endpoint=hub.url, retry_command="again")


def test_open_repo_creates_a_private_model_repo() -> None:
    with fake_hub() as hub:
        url = open_repo("ada/player", MODEL, private=True, endpoint=hub.url)
    assert url == f"{hub.url}/ada/player"
    assert (hub.repos, hub.kinds) == ({"ada/player": True}, {"ada/player": "model"})


def test_invalid_model_name_is_rejected() -> None:
    with pytest.raises(ConfigError, match=r"'player'.*'ada/wordle-player'"):
        check_upload_target("player", MODEL)


def test_model_files_exclude_the_card_and_hidden_files(tmp_path: Path) -> None:
    for name in ("README.md", ".a.json", "a.json", "model.safetensors", "chat_template.jinja"):
        (tmp_path / name).touch()
    assert {*model_files(tmp_path)} == {"a.json", "model.safetensors", "chat_template.jinja"}
