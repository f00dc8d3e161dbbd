"""Errors of `ludus train` before anything is loaded: one line, and nothing is written."""

from __future__ import annotations

from pathlib import Path

import pytest

from cli.collect_cli import error_line
from cli.train_cli import (
    FAST_OPTIONS,
    error_message,
    help_of,
    invoke_train,
    save_model,
    train,
    write_pairs,
    write_rows,
)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--lora", "rnk=4"), "'rank'"),
        (("--lora", "r=0"), "--lora rank "),
        (("--lora", "r=x"), "--lora rank "),
        (("--lora", "targets="), "--lora target_modules "),
        (("--lora", "dropout=1.5,merge=false"), "--lora dropout "),
        (("--set", "hub_token=x"), "HF_TOKEN"),
        (("--epochs", "0"), "--epochs"),
        (("--push-to-hub", "mine"), "'mine'"),
        (("--push-to-hub", "ada/player"), "hf auth login"),
    ],
)
def test_invalid_options_print_one_line(
    options: tuple[str, ...], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("huggingface_hub.constants.HF_TOKEN_PATH", str(tmp_path / "token"))
    for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HF_OIDC_RESOURCE"):
        monkeypatch.delenv(name, raising=False)
    assert words in error_message(invoke_train("sft", "data", "-m", "model", "-o", "out", *options))
    assert not list(tmp_path.iterdir())


def test_the_program_prints_the_error_and_exits_with_1(tmp_path: Path) -> None:
    done = train("dpo", tmp_path / "none", "-m", "model", "-o", tmp_path / "out")
    assert str(tmp_path / "none") in error_line(done)


def test_options_of_the_other_method_are_refused(tmp_path: Path) -> None:
    model, out = save_model(tmp_path / "model"), tmp_path / "out"
    rows, pairs = write_rows(tmp_path / "rows"), write_pairs(tmp_path / "pairs")
    for command, option in (
        (("sft", rows), "--beta=0.1"),
        (("dpo", pairs), "--compile"),
    ):
        done = invoke_train(*command, "-m", model, "-o", out, option)
        assert done.exit_code == 2 and option.partition("=")[0] in done.stderr
    assert not out.exists()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--private",), "--private"),
        (("--push-to-hub", "ada/player:secret"), "'ada/player:secret'"),
        (("--checkpoint-every", "soon"), "'soon'"),
        (("--lora", "maybe"), "maybe"),
        (("--step", "3"), "--steps"),
        (("--set", "warmup_steps"), "key=value"),
    ],
)
def test_unparsable_options_exit_with_2(options: tuple[str, ...], words: str) -> None:
    done = invoke_train("sft", "data", "-m", "model", "-o", "out", *options)
    assert done.exit_code == 2 and words in done.stderr and done.stderr.count("\n") == 1


def test_help_states_devices_and_defaults() -> None:
    for method in ("sft", "dpo"):
        help_text = help_of(method, "--help-all")
        assert "[default: 3 for sft, 1 for dpo]" in help_text and "[default: 0]" in help_text
        assert "--chat-template-kwargs" not in help_text
        assert "--device" not in help_of(method, "--help")


def test_an_unknown_trl_field_gets_a_suggestion(tmp_path: Path) -> None:
    model, data = save_model(tmp_path / "model"), write_rows(tmp_path / "data")
    command = ("sft", data, "-m", model, "-o", tmp_path / "out", *FAST_OPTIONS)
    output = error_message(invoke_train(*command, "--set", "warmup_step=3"))
    assert "'warmup_steps'" in output
    assert not (tmp_path / "out").exists()


def test_a_folder_with_other_files_is_not_touched(tmp_path: Path) -> None:
    model, data, out = (
        save_model(tmp_path / "model"),
        write_rows(tmp_path / "data"),
        tmp_path / "out",
    )
    out.mkdir()
    (out / "thesis.tex").write_text("mine")
    for more in ((), ("--overwrite",)):
        output = error_message(
            invoke_train("sft", data, "-m", model, "-o", out, *FAST_OPTIONS, *more)
        )
        assert "thesis.tex" in output
    assert [file.name for file in out.iterdir()] == ["thesis.tex"]


def test_help_shows_examples_and_loads_nothing_heavy(tmp_path: Path) -> None:
    done = train("sft", "--help", env={"PYTHONPROFILEIMPORTTIME": "1"})
    assert done.returncode == 0 and "ludus train sft data/" in done.stdout
    loaded = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    heavy = {"torch", "transformers", "trl", "datasets", "peft", "matplotlib", "huggingface_hub"}
    assert "cyclopts" in loaded and not loaded & heavy
