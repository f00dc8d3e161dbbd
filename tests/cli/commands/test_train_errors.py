"""What `ludus train` refuses before anything is loaded: one line, and nothing is written."""

from __future__ import annotations

from pathlib import Path

import pytest

from cli.collect_cli import error_line
from cli.train_cli import FAST_OPTIONS, save_model, invoke_train, error_message, write_rows, train


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--lora-rank", "4"), "--lora-rank says how an adapter is made. Add --lora"),
        (("--no-merge-adapter",), "--no-merge-adapter says how an adapter is made."),
        (("--lora-target-modules", "q_proj"), "--lora-target-modules says"),
        (("--lora", "--lora-target-modules", ","), "--lora-target-modules names no layer."),
        (("--lora", "--lora-dropout", "1.5"), "--lora-dropout 1.5 is no share"),
        (("--set", "warmup_steps"), "--set warmup_steps is no assignment."),
        (("--set", "hub_token=x"), "--set hub_token would be written down. Set HF_TOKEN"),
        (("--epochs", "0"), "--epochs 0.0 cannot be"),
        (("--precision", "bf61"), "--precision bf61 is unknown. Did you mean 'bf16'?"),
        (("--private",), "--private is about the Hub. Add --push-to-hub"),
        (("--push-to-hub", "mine"), "'mine' cannot be the name of a model on the Hub."),
        (("--push-to-hub", "ada/player"), "hf auth login"),
    ],
)
def test_what_cannot_be_is_one_line(
    options: tuple[str, ...], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("huggingface_hub.constants.HF_TOKEN_PATH", str(tmp_path / "token"))
    for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HF_OIDC_RESOURCE"):
        monkeypatch.delenv(name, raising=False)
    assert words in error_message(invoke_train("sft", "data", "-m", "model", "-o", "out", *options))
    assert not list(tmp_path.iterdir())


def test_the_program_says_it_in_red_and_ends_with_1(tmp_path: Path) -> None:
    done = train("dpo", tmp_path / "none", "-m", "model", "-o", tmp_path / "out")
    assert error_line(done).startswith(f"There is no data set {str(tmp_path / 'none')!r}")


def test_the_two_methods_have_options_of_their_own() -> None:
    for method, option in (("sft", "--beta=0.1"), ("dpo", "--packing"), ("dpo", "--compile")):
        done = invoke_train(method, "data", "-m", "model", "-o", "out", option)
        assert done.exit_code == 2 and "No such option" in done.stderr


def test_help_offers_what_is_taken() -> None:
    for method in ("sft", "dpo"):
        told = " ".join(invoke_train(method, "--help").stdout.split())
        assert "cuda, mps or cpu." in told and "cuda:1" not in told
        assert "How often every row is seen. [default: (3 for sft, 1 for dpo)]" in told


def test_a_field_that_trl_does_not_have_is_met_with_the_nearest_one(tmp_path: Path) -> None:
    model, data = save_model(tmp_path / "model"), write_rows(tmp_path / "data")
    command = ("sft", data, "-m", model, "-o", tmp_path / "out", *FAST_OPTIONS)
    said = error_message(invoke_train(*command, "--set", "warmup_step=3"))
    assert "warmup_step" in said and "Did you mean 'warmup_steps'?" in said
    assert not (tmp_path / "out").exists()


def test_a_folder_with_something_else_in_it_is_left_alone(tmp_path: Path) -> None:
    model, data, out = (
        save_model(tmp_path / "model"),
        write_rows(tmp_path / "data"),
        tmp_path / "out",
    )
    out.mkdir()
    (out / "thesis.tex").write_text("mine")
    for more in ((), ("--overwrite",)):
        said = error_message(
            invoke_train("sft", data, "-m", model, "-o", out, *FAST_OPTIONS, *more)
        )
        assert "is not empty (thesis.tex)" in said
    assert [file.name for file in out.iterdir()] == ["thesis.tex"]


def test_help_shows_examples_and_loads_nothing_heavy(tmp_path: Path) -> None:
    done = train("sft", "--help", env={"PYTHONPROFILEIMPORTTIME": "1"})
    assert done.returncode == 0 and "ludus train sft data/wordle --model smollm2" in done.stdout
    loaded = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    heavy = {"torch", "transformers", "trl", "datasets", "peft", "matplotlib", "huggingface_hub"}
    assert "typer" in loaded and not loaded & heavy
