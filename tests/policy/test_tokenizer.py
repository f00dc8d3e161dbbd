"""Loading of tokenizers, and errors of one line."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from tiny_tokenizers import CHATML, student

from ludus.errors import ConfigError, MissingExtra
from ludus.policy.load import load_tokenizer


def saved(folder: Path, template: str | None = CHATML) -> str:
    student(template).save_pretrained(folder)
    return str(folder)


def test_a_folder_gives_the_tokenizer_that_was_saved(tmp_path: Path) -> None:
    loaded = load_tokenizer(saved(tmp_path))
    assert loaded.chat_template == CHATML
    assert loaded.get_vocab() == student().get_vocab()


def test_long_texts_give_no_warning(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    student(model_max_length=8).save_pretrained(tmp_path)
    loaded = load_tokenizer(str(tmp_path))
    assert len(loaded("word " * 50)["input_ids"]) > 8
    assert capfd.readouterr() == ("", "") and not caplog.records


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("./nowhere", "'./nowhere'"),
        ("a/b/c", "'a/b/c'"),
        ("", "no model ''"),
        ("two words", "'two words'"),
    ],
)
def test_invalid_names_are_rejected(name: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        load_tokenizer(name)
    assert "\n" not in str(caught.value)


def test_a_file_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_bytes(b"")
    with pytest.raises(ConfigError, match="is a file"):
        load_tokenizer(str(tmp_path / "tokenizer.json"))


def test_a_folder_without_a_tokenizer_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="holds no tokenizer"):
        load_tokenizer(str(tmp_path))


def test_a_damaged_tokenizer_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(ConfigError, match="cannot be read") as caught:
        load_tokenizer(str(tmp_path))
    assert "\n" not in str(caught.value)


def test_a_base_model_without_a_chat_template_is_loaded(tmp_path: Path) -> None:
    assert load_tokenizer(saved(tmp_path, None)).chat_template is None


def test_loading_arguments_are_not_saved(tmp_path: Path) -> None:
    load_tokenizer(saved(tmp_path / "one")).save_pretrained(tmp_path / "two")
    config = json.loads((tmp_path / "two" / "tokenizer_config.json").read_text())
    assert not {"local_files_only", "is_local"} & config.keys()


def test_an_unreachable_hub_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(ConfigError, match=r"nobody/nothing .*the Hub"):
        load_tokenizer("nobody/nothing")


def test_the_error_names_the_train_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(MissingExtra, match=r"'ludus-rl\[train\]'"):
        load_tokenizer("anything")
