"""`ludus collect --provider hf`: a local model plays, from a folder."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from policy.models import saved
from policy.trained_policies import GOAL, player
from tiny_tokenizers import of_family
from world import wait_for_work, wait_until

from cli.collect_cli import (
    CLEAN_ENV,
    COUNTER,
    collect,
    episode_indexes,
    read_episodes,
    read_summary,
    start_collect,
)
from cli.in_process import Result, Runner
from ludus.cli.flags import name_flags
from ludus.errors import ConfigError, RunError


@pytest.fixture(scope="module")
def taught(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that can play Counter up to 6."""
    folder, policy = tmp_path_factory.mktemp("taught"), player()
    policy.model.save_pretrained(folder)
    policy.tokenizer.save_pretrained(folder)
    return folder


def hf_args(model: Path | str, *arguments: str | Path) -> list[str | Path]:
    return [COUNTER, "--provider", "hf", "--model", str(model), *arguments]


def invoke_collect(*arguments: str | Path) -> Result:
    """Run `ludus collect` in this process, which has imported torch already."""
    return Runner().invoke(["collect", *map(str, arguments)], env=CLEAN_ENV)


def test_a_local_model_plays_and_the_same_command_resumes(taught: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    options = ("--task", f'{{"goal": {GOAL}}}', "--temperature", "0", "--device", "cpu", "-o", run)
    first = collect(*hf_args(taught, "-n", "4", *options))
    assert first.returncode == 0, first.stderr
    assert first.stderr.splitlines()[:2] == [f"Checking {COUNTER}", f"Loading {taught}"]
    for episode in read_episodes(run):
        assert episode.reward == 1.0
        assert episode.agent["model"] == str(taught) and episode.agent["provider"] == "hf"
        assert episode.tokens is not None and sum(episode.tokens.mask) > 10
        assert len(episode.tokens.ids) == len(episode.tokens.logprobs) == len(episode.tokens.mask)
    before = (run / "episodes.jsonl").read_bytes()
    again = invoke_collect(*hf_args(taught, "-n", "6", *options))
    assert again.exit_code == 0 and "6 (2 new)" in again.stdout
    assert (run / "episodes.jsonl").read_bytes().startswith(before)
    assert episode_indexes(run) == list(range(6))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--model", "empty", "--dtype", "float32"), "empty"),
        (("--model", "empty", "--extra", '{"topk": 3}'), "'top_k'"),
        (("--model", "empty", "--max-cost", "1"), "--max-cost"),
        ((), "--model"),
    ],
)
def test_invalid_options_print_one_line_and_write_nothing(
    options: tuple[str, ...], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path)
    done = invoke_collect(COUNTER, "--provider", "hf", *options)
    assert isinstance(done.exception, ConfigError) and words in name_flags(str(done.exception))
    assert "\n" not in str(done.exception)
    assert done.stdout == "" and not (tmp_path / "runs").exists()


def test_other_weights_do_not_resume_a_run(tmp_path: Path) -> None:
    model, run = tmp_path / "model", tmp_path / "run"
    short = ("-n", "1", "--max-turns", "1", "--max-tokens", "2", "--device", "cpu", "-o", run)
    saved(model, of_family("qwen3"))
    assert invoke_collect(*hf_args(model, *short)).exit_code == 0
    saved(model, of_family("qwen3"), seed=1)
    done = invoke_collect(*hf_args(model, *short))
    assert isinstance(done.exception, RunError) and "  agent.weights: " in str(done.exception)


@pytest.mark.slow
def test_ctrl_c_twice_stops_decoding_within_a_reply(tmp_path: Path) -> None:
    run = tmp_path / "run"
    slow = ("--temperature", "0")  # An untrained model repeats itself and does not stop.
    babbler = saved(tmp_path / "babbler", of_family("qwen3"))
    with start_collect(
        *hf_args(babbler, "-n", "4000", "--concurrency", "4", *slow, "-o", run)
    ) as process:
        wait_until(lambda: (run / "summary.json").exists(), seconds=100)
        wait_for_work(process)
        process.send_signal(signal.SIGINT)
        assert process.stderr is not None
        assert any("Ctrl-C" in line for line in process.stderr)
        process.send_signal(signal.SIGINT)
        stdout, stderr = process.communicate(timeout=60)
    assert process.returncode == 130 and stderr == "" and "(interrupted)" in stdout
    assert read_summary(run)["stopped"] == "interrupted" and read_summary(run)["episodes"] < 4000
