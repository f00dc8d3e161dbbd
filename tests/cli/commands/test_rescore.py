"""`ludus rescore` as a user types it, with a judge behind a local server."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest
from chat_stub import chat_stub
from ludus_process import run_ludus, start_ludus
from scoring.stored_runs import build_episode, judging, read, write_run
from world import wait_until

from cli.collect_cli import CLEAN_ENV, error_line

REWARD = "scoring.reward_samples:large"


def build_run(folder: Path, episodes: int = 12) -> Path:
    stored = [build_episode(i, i % 10, group=f"g{i // 4}") for i in range(episodes)]
    return write_run(folder / "runs" / "guess", stored)


def test_a_rubric_scores_a_run_by_name_and_show_prints_its_parts(tmp_path: Path) -> None:
    build_run(tmp_path)
    done = run_ludus("rescore", "guess", "--reward", REWARD, cwd=tmp_path, env=CLEAN_ENV)
    assert done.returncode == 0, done.stderr
    (folder,) = tmp_path.glob("runs/guess-rescored-*")
    assert str(folder.relative_to(tmp_path)) in done.stdout
    # The gate is a size of 0.5; the rubric weighs the size by one half.
    rewards = [i % 10 / 20 if i % 10 >= 5 else 0.0 for i in range(12)]
    assert [episode.reward for episode in read(folder)] == rewards
    table = [line.split() for line in done.stdout.splitlines()]
    (means,) = (row for row in table if row[:2] == ["mean", "reward"])
    assert "0.383" in means and f"{sum(rewards) / 12:.3f}" in means
    assert ["changed", "10"] in table
    shown = run_ludus("show", str(folder), "7", cwd=tmp_path, env=CLEAN_ENV).stdout
    assert "large/size 0.7" in shown and "reward 0.35" in shown


def test_an_edited_function_scores_into_another_folder(tmp_path: Path) -> None:
    build_run(tmp_path)
    for value in ("0.5", "0.7"):
        (tmp_path / "rewards.py").write_text(f"def flat(episode):\n    return {value}\n")
        command = ("rescore", "guess", "--reward", "rewards:flat")
        done = run_ludus(*command, cwd=tmp_path, env=CLEAN_ENV)
        assert done.returncode == 0 and ["scored", "now", "12"] in map(
            str.split, done.stdout.splitlines()
        )
    folders = sorted(tmp_path.glob("runs/guess-rescored-*"))
    assert {episode.reward for folder in folders for episode in read(folder)} == {0.5, 0.7}
    refused = run_ludus(*command, "-o", "runs/x", cwd=tmp_path, env=CLEAN_ENV)
    assert refused.returncode == 0
    (tmp_path / "rewards.py").write_text("def flat(episode):\n    return 0.9\n")
    refused = run_ludus(*command, "-o", "runs/x", cwd=tmp_path, env=CLEAN_ENV)
    assert refused.returncode == 1 and "code" in refused.stderr


def test_an_edited_rubric_scores_into_another_folder(tmp_path: Path) -> None:
    build_run(tmp_path)
    for weight in ("1.0", "9.0"):
        (tmp_path / "rewards.py").write_text(
            "from ludus import Rubric, RubricPart\n"
            "def one(episode):\n    return 1.0\n"
            f"quality = Rubric(RubricPart('one', one, weight={weight}))\n"
        )
        command = ("rescore", "guess", "--reward", "rewards:quality")
        assert run_ludus(*command, cwd=tmp_path, env=CLEAN_ENV).returncode == 0
    folders = sorted(tmp_path.glob("runs/guess-rescored-*"))
    assert {episode.reward for folder in folders for episode in read(folder)} == {1.0, 9.0}


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("def broken(:\n", "SyntaxError"),
        ("x = undefined\n", "NameError"),
        ("import math\nmath.tau_and_more\n", "AttributeError"),
    ],
)
def test_a_module_that_does_not_load_is_one_line(tmp_path: Path, source: str, said: str) -> None:
    build_run(tmp_path)
    (tmp_path / "rewards.py").write_text(source)
    done = run_ludus("rescore", "guess", "--reward", "rewards:f", cwd=tmp_path, env=CLEAN_ENV)
    assert done.returncode == 1 and len(done.stderr.splitlines()) == 1
    assert "cannot import rewards" in done.stderr and said in done.stderr


def test_a_judge_ranks_groups(tmp_path: Path) -> None:
    run = build_run(tmp_path)
    (tmp_path / "criteria.md").write_text("Prefer high guesses.\n")
    with chat_stub(judging) as stub:
        arguments = [str(run), "--judge", "openai:m", "--llm-endpoint", stub.url, "--judge-groups"]
        arguments += ["--judge-prompt", "criteria.md", "-o", "new", "--json"]
        done = run_ludus("rescore", *arguments, cwd=tmp_path, env=CLEAN_ENV)
        assert done.returncode == 0, done.stderr
        assert len(stub.bodies) == 3
        assert "Prefer high guesses." in json.dumps(stub.bodies[0])
    assert [episode.reward for episode in read(tmp_path / "new")] == [
        i % 10 / 10 for i in range(12)
    ]
    assert json.loads(done.stdout.splitlines()[-1])["judge"]["calls"] == 3


def test_interrupting_finishes_the_judgements_under_way_and_resumes(tmp_path: Path) -> None:
    run = build_run(tmp_path, 60)
    with chat_stub(judging, latency=0.05) as stub:
        arguments = ["rescore", str(run), "--judge", "openai:m", "--llm-endpoint", stub.url]
        arguments += ["--concurrency", "2", "-o", str(tmp_path / "new")]
        with start_ludus(*arguments, env=CLEAN_ENV) as process:
            wait_until(lambda: len(stub.bodies) >= 5)
            process.send_signal(signal.SIGINT)
            stdout, stderr = process.communicate(timeout=60)
        assert process.returncode == 130, stderr
        assert "Left to do" in stdout and "Traceback" not in stderr
        recorded = len(read(tmp_path / "new"))
        assert 3 <= recorded < 60
        done = run_ludus(*arguments, env=CLEAN_ENV)
        assert done.returncode == 0 and len(read(tmp_path / "new")) == 60
        assert len(stub.bodies) == 60


def test_errors_name_flags(tmp_path: Path) -> None:
    run = str(build_run(tmp_path))
    for arguments, words in (
        ([run], "--reward"),
        ([run, "--reward", REWARD, "--judge-groups"], "--judge"),
        ([run, "--judge", "openai:m", "--judge-prompt", "none.md"], "--judge-prompt"),
    ):
        done = run_ludus("rescore", *arguments, cwd=tmp_path, env=CLEAN_ENV)
        assert words in error_line(done)
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["guess"]
