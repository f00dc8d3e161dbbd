"""`--thinking`, `--no-thinking` and `--chat-template-kwargs`."""

from __future__ import annotations

from pathlib import Path

import pytest
from policy.models import saved
from tiny_tokenizers import of_family

from cli.collect_cli import CLEAN_ENV, COUNTER, read_episodes
from cli.in_process import Result, Runner
from cli.train_cli import FAST_OPTIONS, write_rows
from ludus.cli.flags import name_flags
from ludus.errors import ConfigError, RunError

OFF, ON = {"enable_thinking": False}, {"enable_thinking": True}
SHORT = ("-n", "1", "--max-turns", "1", "--max-tokens", "2", "--device", "cpu")


def ludus(*arguments: str | Path) -> Result:
    return Runner().invoke([*map(str, arguments)], env=CLEAN_ENV)


def collect(model: Path, *arguments: str | Path) -> Result:
    return ludus("collect", COUNTER, "--agent", f"hf:{model}", *SHORT, *arguments)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved(tmp_path_factory.mktemp("model"), of_family("qwen3"))


def test_template_kwargs_are_recorded_and_part_of_the_run_identity(
    model: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    assert collect(model, "--no-thinking", "-o", run).exit_code == 0
    (episode,) = read_episodes(run)
    assert episode.agent["chat_template_kwargs"] == OFF and episode.tokens is not None
    same = ("--chat-template-kwargs", '{"enable_thinking": false}')
    assert collect(model, *same, "-o", run).exit_code == 0
    for other in (("--thinking",), ()):
        done = collect(model, *other, "-o", run)
        assert isinstance(done.exception, RunError)
        assert "chat_template_kwargs" in str(done.exception)


def test_a_model_trained_without_thinking_plays_without_it(model: Path, tmp_path: Path) -> None:
    data, out = write_rows(tmp_path / "data", 2), tmp_path / "out"
    refused = ludus("train", "sft", data, "-m", model, "-o", out, *FAST_OPTIONS, "--no-thinking")
    assert isinstance(refused.exception, ConfigError), "a row has reasoning"
    lines = (data / "train.jsonl").read_text().splitlines()
    (data / "train.jsonl").write_text(lines[0] + "\n")
    done = ludus("train", "sft", data, "-m", model, "-o", out, *FAST_OPTIONS, "--no-thinking")
    assert done.exit_code == 0 and "--chat-template-kwargs" in done.output
    for name, options, kwargs in (("a", (), OFF), ("b", ("--thinking",), ON)):
        assert collect(out, *options, "-o", tmp_path / name).exit_code == 0
        (episode,) = read_episodes(tmp_path / name)
        assert episode.agent["chat_template_kwargs"] == kwargs


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--chat-template-kwargs", '{"enable_thinkin": true}'), "'enable_thinkin'"),
        (("--chat-template-kwargs", '{"tools": []}'), "'tools'"),
    ],
)
def test_unknown_template_arguments_are_rejected(
    options: tuple[str, ...], words: str, model: Path, tmp_path: Path
) -> None:
    done = collect(model, *options, "-o", tmp_path / "run")
    assert isinstance(done.exception, ConfigError) and words in str(done.exception)
    assert "\n" not in str(done.exception) and not (tmp_path / "run").exists()


def test_an_option_that_contradicts_the_template_arguments_is_rejected(model: Path) -> None:
    done = collect(model, "--no-thinking", "--chat-template-kwargs", '{"enable_thinking": true}')
    assert isinstance(done.exception, ConfigError)
    message = name_flags(str(done.exception))
    assert "--no-thinking" in message and "--chat-template-kwargs" in message


def test_template_arguments_that_are_no_table_are_rejected(model: Path) -> None:
    done = collect(model, "--chat-template-kwargs", "[1]")
    assert done.exit_code == 2 and "--chat-template-kwargs" in done.output
