"""`ludus train grpo`: log, episodes, summary, signals and errors of small runs."""

from __future__ import annotations

import json
import os
import signal
from dataclasses import dataclass
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from world import wait_until

from cli.collect_cli import COUNTER, read_episodes
from cli.in_process import Result, Runner
from cli.train_cli import (
    error_message,
    invoke_train,
    parse_events,
    read_log,
    save_model,
    start_train,
)
from ludus.cli.display.train_summary import result_lines
from ludus.data.episode import Episode
from ludus.train import TrainResult
from ludus.train.output.record import read_record

SMALL = (
    *("--groups", "2", "--group-size", "2", "--max-episode-tokens", "8", "--max-turns", "2"),
    *("--device", "cpu", "--report-to", "none"),
)
REWARD_SPEC = "cli.commands.test_train_grpo:vowels"
"""An untrained model calls no tools, but its text has vowels to reward."""
LOGGED_METRICS = {
    *(
        "step",
        "loss",
        "learning_rate",
        "grad_norm",
        "entropy",
        "reward",
        "reward_std",
        "zero_variance",
    ),
    *("trained", "unscored", "done", "length", "turns", "cut_off", "out_of_turns", "tokens"),
    *("seconds",),
    *("time/rollout", "time/model", "time/environment", "time/train", "time/step"),
}


def vowels(episode: Episode) -> float:
    text = " ".join(message.text for message in episode.messages if message.role == "assistant")
    return sum(letter in "aeiou" for letter in text) / 8


def ludus(*arguments: str | Path) -> Result:
    return Runner().invoke([*map(str, arguments)])


def wait_for_log(out: Path) -> None:
    """Wait until a run has logged a step."""
    wait_until(lambda: (out / "log.jsonl").is_file() and bool(read_log(out)), seconds=120)


@dataclass(frozen=True)
class TrainedRun:
    model: Path
    out: Path
    events: list[dict[str, Any]]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> TrainedRun:
    """A run of three steps on a mixture, with a reward function."""
    folder = tmp_path_factory.mktemp("grpo")
    model, out = save_model(folder / "model"), folder / "out"
    command = ("grpo", f"{COUNTER},catch", "-m", model, "-o", out, *SMALL, "--steps", "3")
    options = ("--reward-func", REWARD_SPEC, "--eval-every", "3", "--eval-episodes", "2", "--json")
    done = invoke_train(*command, *options)
    assert done.exit_code == 0, (done.output, done.exception)
    return TrainedRun(model, out, parse_events(done.stdout))


def test_every_step_is_an_event_with_all_metrics(trained: TrainedRun) -> None:
    steps = [line for line in trained.events if line["event"] == "step"]
    assert [line["step"] for line in steps if "reward" in line] == [1, 2, 3]
    for line in steps:
        del line["event"], line["seconds_left"]
        metrics = {name: line[name] for name in line if not name.endswith("_rewards")}
        assert all(isinstance(value, int | float) for value in metrics.values()), line
    assert steps == read_log(trained.out)
    assert all(line.keys() >= LOGGED_METRICS for line in steps if "reward" in line)
    assert "rewards/vowels/mean" in next(line for line in steps if "reward" in line)
    tests = [line for line in steps if "eval_reward" in line]
    assert [(line["step"], line["eval_episodes"]) for line in tests] == [(0, 2), (3, 2)]


def test_the_last_event_is_the_result(trained: TrainedRun) -> None:
    last, record = trained.events[-1], read_record(trained.out)
    assert (last["event"], last["steps"], last["stopped"]) == ("summary", 3, None)
    assert last["folder"] == str(trained.out) and isinstance(last["verdicts"], list)
    assert record is not None and record.environment is not None and record.metrics is not None
    assert record.environment.names == (COUNTER, "catch")
    assert {"model.safetensors", "README.md", "episodes.jsonl", "reward.png"} <= {
        file.name for file in trained.out.iterdir()
    }


def test_the_episodes_of_a_training_can_be_shown(trained: TrainedRun) -> None:
    found = read_episodes(trained.out)
    assert len(found) == 12 and {episode.agent["step"] for episode in found} == {1, 2, 3}
    shown = ludus("show", trained.out, found[-1].episode_id)
    assert shown.exit_code == 0, shown.output
    assert shown.stdout.splitlines()[0].endswith(f" · step {found[-1].agent['step']}")
    assert f"vowels {vowels(found[-1]):g}" in shown.stdout
    line = json.loads(ludus("show", trained.out, "--json").stdout)
    assert len(line["tokens"]["ids"]) == len(line["tokens"]["mask"])


def test_the_episodes_of_a_training_can_be_curated(trained: TrainedRun, tmp_path: Path) -> None:
    done = ludus("curate", trained.out, "--to", "episodes", "--no-dedupe", "-o", tmp_path / "data")
    assert done.exit_code == 0, (done.output, done.exception)
    rows = (tmp_path / "data" / "train.jsonl").read_text().splitlines()
    assert {json.loads(row)["episode_id"] for row in rows} == {
        episode.episode_id for episode in read_episodes(trained.out)
    }


def test_the_summary_ends_with_the_next_command(trained: TrainedRun, tmp_path: Path) -> None:
    out = tmp_path / "out"
    command = ("grpo", COUNTER, "-m", trained.model, "-o", out, *SMALL, "--steps", "1")
    done = invoke_train(*command, "--task", '{"goal": 5}', "--reward-func", REWARD_SPEC)
    assert done.exit_code == 0, (done.output, done.exception)
    lines = done.stdout.splitlines()
    names = [line.split()[0] for line in lines]
    assert names[:3] == ["steps", "held", "reward"] and {"time", "model"} <= {*names}
    assert " -> " in lines[1]
    task = "--task goal=5"
    assert lines[-1] == (
        f"Next: ludus eval {COUNTER} {task} -c hf:{trained.model} -c hf:{out} -n 100"
    )
    again = invoke_train(*command, "--task", '{"goal": 5}', "--reward-func", REWARD_SPEC)
    assert "is trained already" in again.stderr and again.stdout.splitlines()[-1] == lines[-1]


def test_an_early_stop_is_reported(trained: TrainedRun, tmp_path: Path) -> None:
    for name in ("training.json", "log.jsonl"):
        (tmp_path / name).write_bytes((trained.out / name).read_bytes())
    about = json.loads((tmp_path / "training.json").read_text())
    about["settings"] |= {"steps": 150, "early_stop": True}
    (tmp_path / "training.json").write_text(json.dumps(about))
    lines = dict(result_lines(TrainResult(tmp_path, 3, None, 1.0, 10)))
    assert "3 of 150" in lines["steps"]


def test_a_terminated_run_resumes_with_the_same_command(
    trained: TrainedRun, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    short = ("--steps", "12", "--eval-every", "0")
    command = ("grpo", COUNTER, "-m", trained.model, "-o", out, *SMALL, *short)
    terminator = Thread(target=_terminate_once_logged, args=(out,))
    terminator.start()
    stopped = invoke_train(*command, "--reward-func", REWARD_SPEC)
    terminator.join()
    assert stopped.exit_code == 143, (stopped.output, stopped.exception)
    step = int(stopped.stdout.removeprefix("Stopped at step ").partition(";")[0])
    assert 1 <= step < 12 and (out / "model.safetensors").exists()
    again = invoke_train(*command, "--reward-func", REWARD_SPEC)
    assert again.exit_code == 0, again.output
    first = " ".join(again.stdout.splitlines()[0].split())
    assert first == f"steps 12 (resumed after {step})"
    assert [line["step"] for line in read_log(out)] == list(range(1, 13))
    assert len(read_episodes(out)) == 12 * 4


def _terminate_once_logged(out: Path) -> None:
    """Send SIGTERM to this process once it handles the signal."""
    wait_for_log(out)
    os.kill(os.getpid(), signal.SIGTERM)


def test_ctrl_c_stops_after_the_current_step(trained: TrainedRun, tmp_path: Path) -> None:
    out = tmp_path / "out"
    command = ("grpo", COUNTER, "-m", trained.model, "-o", out, *SMALL, "--steps", "500")
    with start_train(*command, "--reward-func", REWARD_SPEC) as process:
        wait_for_log(out)
        process.send_signal(signal.SIGINT)
        stdout, stderr = process.communicate(timeout=60)
    assert process.returncode == 130, stderr
    assert "Stopping after this step" in stderr
    assert stdout.startswith("Stopped at step ") and "the same command" in stdout


@pytest.mark.parametrize(
    ("environment", "options", "words"),
    [
        ("wrodle", (), "'wordle'"),
        (
            "catch",
            ("--reward-func", "cli.commands.test_train_grpo"),
            "cli.commands.test_train_grpo",
        ),
        ("catch", ("--reward-func", "cli.commands.test_train_grpo:vowel"), "vowel"),
        ("catch", ("--reward-func", f"{REWARD_SPEC}=much"), "much"),
        ("catch", ("--task", '{"nonsense": 1}'), "nonsense"),
        ("catch", ("--set", "num_generation=4"), "num_generation"),
    ],
)
def test_invalid_environments_and_rewards_print_one_line_and_write_nothing(
    environment: str, options: tuple[str, ...], words: str, trained: TrainedRun, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    output = error_message(
        invoke_train("grpo", environment, "-m", trained.model, "-o", out, *SMALL, *options)
    )
    assert words in output and not out.exists()
