"""`ludus train grpo`: from an environment to a model, and everything that was played on the way."""

from __future__ import annotations

import json
import os
import signal
from dataclasses import dataclass
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from typer.testing import CliRunner, Result
from world import wait_until

from cli.collect_cli import COUNTER, read_episodes
from cli.train_cli import (
    save_model,
    parse_events,
    invoke_train,
    read_log,
    error_message,
    start_train,
)
from ludus.cli.display.grpo_summary import GRPOSummary
from ludus.cli.main import app
from ludus.data.episode import Episode
from ludus.train import TrainResult
from ludus.train.output.record import read_record as record_of

SMALL = (
    *("--groups", "2", "--group-size", "2", "--max-episode-tokens", "8", "--max-turns", "2"),
    *("--device", "cpu", "--report-to", "none"),
)
REWARD_SPEC = "cli.test_train_grpo:vowels"
"""A model that is made on the spot calls no tools, but it says something."""
LOGGED_METRICS = {
    *("step", "loss", "learning_rate", "grad_norm", "entropy", "reward", "reward_std", "equal"),
    *("trained", "unscored", "done", "length", "turns", "cut_off", "out_of_turns", "tokens"),
    *("seconds",),
    *("time/rollout", "time/model", "time/environment", "time/train", "time/step"),
}


def vowels(episode: Episode) -> float:
    said = " ".join(message.text for message in episode.messages if message.role == "assistant")
    return sum(letter in "aeiou" for letter in said) / 8


def ludus(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, [*map(str, arguments)])


@dataclass(frozen=True)
class TrainedRun:
    model: Path
    out: Path
    told: list[dict[str, Any]]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> TrainedRun:
    """Three steps on a mix, with a reward of one's own."""
    folder = tmp_path_factory.mktemp("grpo")
    model, out = save_model(folder / "model"), folder / "out"
    mix = f"{COUNTER},catch"
    done = invoke_train(
        *(
            "grpo",
            mix,
            "-m",
            model,
            "-o",
            out,
            *SMALL,
            "--steps",
            "3",
            "--reward-func",
            REWARD_SPEC,
            "--json",
        ),
        *("--eval-every", "3", "--eval-episodes", "2"),
    )
    assert done.exit_code == 0, (done.output, done.exception)
    return TrainedRun(model, out, parse_events(done.stdout))


def test_every_step_is_told_with_all_its_figures(trained: TrainedRun) -> None:
    assert {line["event"] for line in trained.told} <= {"phase", "said", "begin", "step", "done"}
    steps = [line for line in trained.told if line["event"] == "step"]
    assert [line["step"] for line in steps if "reward" in line] == [1, 2, 3]
    for line in steps:
        del line["event"], line["seconds_left"]
        assert all(isinstance(value, int | float) for value in line.values()), line
    assert steps == read_log(trained.out)
    assert all(line.keys() >= LOGGED_METRICS for line in steps if "reward" in line)
    assert "rewards/vowels/mean" in next(line for line in steps if "reward" in line)
    tests = [line for line in steps if "eval_reward" in line]
    assert [(line["step"], line["eval_episodes"]) for line in tests] == [(0, 2), (3, 2)]


def test_the_last_line_says_what_came_of_it(trained: TrainedRun) -> None:
    last, record = trained.told[-1], record_of(trained.out)
    assert (last["event"], last["steps"], last["stopped"]) == ("done", 3, None)
    assert last["folder"] == str(trained.out) and isinstance(last["verdicts"], list)
    assert record is not None and record.environment is not None and record.figures is not None
    assert record.environment.names == (COUNTER, "catch")
    assert {"model.safetensors", "README.md", "episodes.jsonl", "reward.png"} <= {
        file.name for file in trained.out.iterdir()
    }


def test_all_that_was_played_can_be_shown(trained: TrainedRun) -> None:
    found = read_episodes(trained.out)
    assert len(found) == 12 and {episode.agent["step"] for episode in found} == {1, 2, 3}
    shown = ludus("show", trained.out, found[-1].episode_id)
    assert shown.exit_code == 0, shown.output
    assert shown.stdout.splitlines()[0].endswith(f" · step {found[-1].agent['step']}")
    assert f"vowels {vowels(found[-1]):g}" in shown.stdout
    line = json.loads(ludus("show", trained.out, "--json").stdout)
    assert len(line["tokens"]["ids"]) == len(line["tokens"]["mask"])


def test_it_is_listed_among_the_runs(trained: TrainedRun) -> None:
    (line,) = ludus("runs", trained.out.parent, "--json").stdout.splitlines()
    fact, found = json.loads(line), read_episodes(trained.out)
    assert (fact["run"], fact["episodes"], fact["complete"]) == (str(trained.out), 12, True)
    assert COUNTER in fact["environment"] and "catch" in fact["environment"]
    assert fact["agent"]["model"] == str(trained.model)
    mean = sum(episode.reward or 0.0 for episode in found) / 12
    assert fact["mean_reward"] == pytest.approx(mean)


def test_a_training_that_cannot_be_read_does_not_hide_the_others(
    trained: TrainedRun, tmp_path: Path
) -> None:
    (tmp_path / "good").symlink_to(trained.out)
    (tmp_path / "torn").mkdir()
    (tmp_path / "torn" / "training.json").write_text("{")
    (tmp_path / "torn" / "episodes.jsonl").write_text("")
    (line,) = ludus("runs", tmp_path, "--json").stdout.splitlines()
    assert json.loads(line)["run"] == str(tmp_path / "good")


def test_what_was_played_can_be_curated(trained: TrainedRun, tmp_path: Path) -> None:
    done = ludus("curate", trained.out, "--to", "episodes", "--no-dedupe", "-o", tmp_path / "data")
    assert done.exit_code == 0, (done.output, done.exception)
    rows = (tmp_path / "data" / "train.jsonl").read_text().splitlines()
    assert {json.loads(row)["episode_id"] for row in rows} == {
        episode.episode_id for episode in read_episodes(trained.out)
    }


def test_the_end_is_told_in_words_with_what_comes_next(trained: TrainedRun, tmp_path: Path) -> None:
    out = tmp_path / "out"
    command = ("grpo", COUNTER, "-m", trained.model, "-o", out, *SMALL, "--steps", "1")
    done = invoke_train(*command, "--task", '{"goal": 5}', "--reward-func", REWARD_SPEC)
    assert done.exit_code == 0, (done.output, done.exception)
    lines = done.stdout.splitlines()
    names = [line.split()[0] for line in lines]
    assert names[:2] == ["steps", "reward"] and {"time", "model"} <= {*names}
    assert " -> " in lines[1]
    task = """--task '{"goal": 5}'"""
    assert lines[-1] == (
        f"Next: ludus eval {COUNTER} {task} -c hf:{trained.model} -c hf:{out} -n 100"
    )
    again = invoke_train(*command, "--task", '{"goal": 5}', "--reward-func", REWARD_SPEC)
    assert "is trained already" in again.stderr and again.stdout.splitlines()[-1] == lines[-1]


def test_a_run_that_ended_early_says_so(trained: TrainedRun, tmp_path: Path) -> None:
    for name in ("training.json", "log.jsonl"):
        (tmp_path / name).write_bytes((trained.out / name).read_bytes())
    about = json.loads((tmp_path / "training.json").read_text())
    about["settings"] |= {"steps": 150, "early_stop": True}
    (tmp_path / "training.json").write_text(json.dumps(about))
    lines = dict(GRPOSummary("model").lines(TrainResult(tmp_path, 3, None, 1.0, 10)))
    assert lines["steps"] == "3, and not 150: it ended early"


def test_a_run_that_was_terminated_goes_on_with_the_same_command(
    trained: TrainedRun, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    command = ("grpo", COUNTER, "-m", trained.model, "-o", out, *SMALL, "--steps", "12")
    terminator = Thread(target=_terminate_once_logged, args=(out,))
    terminator.start()
    stopped = invoke_train(*command, "--reward-func", REWARD_SPEC)
    terminator.join()
    assert stopped.exit_code == 143, (stopped.output, stopped.exception)
    step = int(stopped.stdout.removeprefix("Stopped at step ").partition(";")[0])
    assert 1 <= step < 12 and not (out / "model.safetensors").exists()
    again = invoke_train(*command, "--reward-func", REWARD_SPEC)
    assert again.exit_code == 0, again.output
    first = " ".join(again.stdout.splitlines()[0].split())
    assert first == f"steps 12 (went on after {step})"
    assert [line["step"] for line in read_log(out)] == list(range(1, 13))
    assert len(read_episodes(out)) == 12 * 4


def _terminate_once_logged(out: Path) -> None:
    """This very process: by then it listens to the signal, and does not die of it."""
    wait_until(lambda: (out / "log.jsonl").is_file() and bool(read_log(out)), seconds=60)
    os.kill(os.getpid(), signal.SIGTERM)


def test_ctrl_c_ends_it_after_the_step_that_is_under_way(
    trained: TrainedRun, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    command = ("grpo", COUNTER, "-m", trained.model, "-o", out, *SMALL, "--steps", "500")
    with start_train(*command) as process:
        assert process.stderr is not None
        heard = next(line for line in process.stderr if ", reward " in line)
        assert ", reward 0.000, std. dev. 0.000, equal groups 100%" in heard
        process.send_signal(signal.SIGINT)
        said, complained = process.communicate(timeout=60)
    assert process.returncode == 130, complained
    assert "Stopping after this step; Ctrl-C again stops at once.\n" in complained
    assert said.startswith("Stopped at step ") and "the same command goes on" in said


@pytest.mark.parametrize(
    ("environment", "options", "words"),
    [
        ("wrodle", (), "Did you mean 'wordle'?"),
        ("catch", ("--reward-func", "cli.test_train_grpo"), "names no function"),
        ("catch", ("--reward-func", "cli.test_train_grpo:vowel"), "has no function vowel"),
        ("catch", ("--reward-func", f"{REWARD_SPEC}=much"), "'much' is no weight"),
        ("catch", ("--task", '{"nonsense": 1}'), "nonsense"),
        ("catch", ("--set", "num_generation=4"), "num_generation"),
    ],
)
def test_what_cannot_be_played_is_one_line_and_leaves_nothing(
    environment: str, options: tuple[str, ...], words: str, trained: TrainedRun, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    said = error_message(
        invoke_train("grpo", environment, "-m", trained.model, "-o", out, *SMALL, *options)
    )
    assert words in said and not out.exists()
