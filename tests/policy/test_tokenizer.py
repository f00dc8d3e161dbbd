"""A student's tokenizer: from a folder, or one line that says why not."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from students import CHATML, student

from ludus.errors import ConfigError, MissingExtra
from ludus.policy.tokenizer import load_tokenizer


def saved(folder: Path, template: str | None = CHATML) -> str:
    student(template).save_pretrained(folder)
    return str(folder)


def test_a_folder_gives_the_tokenizer_that_was_saved(tmp_path: Path) -> None:
    loaded = load_tokenizer(saved(tmp_path))
    assert loaded.chat_template == CHATML
    assert loaded.get_vocab() == student().get_vocab()


def test_a_long_row_is_no_warning(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    student(model_max_length=8).save_pretrained(tmp_path)
    loaded = load_tokenizer(str(tmp_path))
    assert len(loaded("word " * 50)["input_ids"]) > 8
    assert capfd.readouterr() == ("", "") and not caplog.records


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("./nowhere", "There is no model './nowhere'"),
        ("a/b/c", "There is no model 'a/b/c'"),
        ("", "There is no model"),
        ("two words", "'two words' is neither a folder nor a name on the Hub"),
    ],
)
def test_what_cannot_be_a_student_is_one_line(name: str, words: str) -> None:
    with pytest.raises(ConfigError, match=f"^{words}") as caught:
        load_tokenizer(name)
    assert "\n" not in str(caught.value)


def test_a_file_is_no_student(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_bytes(b"")
    with pytest.raises(ConfigError, match=r"tokenizer.json is a file. Name the model's folder"):
        load_tokenizer(str(tmp_path / "tokenizer.json"))


def test_a_folder_without_a_tokenizer_is_no_model(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"holds no tokenizer, so it is no model"):
        load_tokenizer(str(tmp_path))


def test_a_folder_with_a_damaged_tokenizer_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(ConfigError, match=r"The tokenizer of .* cannot be read: ") as caught:
        load_tokenizer(str(tmp_path))
    assert "\n" not in str(caught.value)


def test_a_base_model_without_a_chat_template_is_loaded(tmp_path: Path) -> None:
    assert load_tokenizer(saved(tmp_path, None)).chat_template is None


def test_how_it_was_loaded_is_not_saved_with_it(tmp_path: Path) -> None:
    load_tokenizer(saved(tmp_path / "one")).save_pretrained(tmp_path / "two")
    settings = json.loads((tmp_path / "two" / "tokenizer_config.json").read_text())
    assert not {"local_files_only", "is_local"} & settings.keys()


def test_a_hub_that_cannot_be_reached_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(
        ConfigError, match=r"no folder nobody/nothing here, the Hub cannot be reach"
    ):
        load_tokenizer("nobody/nothing")


def test_without_the_train_extra_its_install_line_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(MissingExtra, match=r"pip install 'ludus-rl\[train\]'"):
        load_tokenizer("anything")
