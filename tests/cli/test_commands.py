"""The program: help, errors, signals, and its smaller commands."""

from __future__ import annotations

import json
import os
import platform
import signal
import subprocess
import sys
import time
from importlib.metadata import version
from pathlib import Path

import httpx
import pytest
from ludus_process import run_ludus, served_by_program, start_ludus
from world import serving, wait_until

import ludus
from cli.collect_cli import PYTHONPATH, read_episodes
from ludus.serve.metrics import RESUMED


def test_help_names_every_command_and_imports_nothing_heavy() -> None:
    done = run_ludus("--help")
    assert done.returncode == 0
    for command in ("envs", "serve", "check", "play", "init", "collect", "runs", "show", "doctor"):
        assert f"│ {command} " in done.stdout
    # What help loads decides how fast it answers; benchmarks/wire.py reports the time.
    script = (
        "import sys; from ludus.cli.main import build_app; build_app(['--help']); "
        "heavy = ('aiohttp', 'fastapi', 'pydantic', 'rich.console', 'httpx', 'uvicorn'); "
        "print([module for module in heavy if module in sys.modules])"
    )
    loaded = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert loaded.stdout.strip() == "[]"


def test_help_lists_few_options_and_help_all_all_but_hidden_ones() -> None:
    few, more = (run_ludus("collect", flag).stdout for flag in ("--help", "--help-all"))
    assert "--num-episodes" in few and "--num-episodes" in more
    assert "--concurrency" not in few and "--concurrency" in more
    assert "--provider" not in more
    assert "10, or all of --tasks" in few, "a default in words"


def test_versions_that_decide_what_a_run_does_are_printed() -> None:
    versions = dict(line.split() for line in run_ludus("--version").stdout.splitlines())
    assert versions["ludus"] == ludus.__version__
    assert versions["python"] == platform.python_version()
    for package in ("torch", "transformers", "trl"):
        assert versions[package] == version(package)


COMPLETE = """
PATH=$PWD:$PATH
. ./script
COMP_WORDS=($1)
COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
_ludus
echo "${COMPREPLY[@]}"
"""


@pytest.fixture(scope="module")
def completion(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home with the completion of bash, and the program that its script calls."""
    home = tmp_path_factory.mktemp("home")
    script = ("--install-completion", "--shell", "bash", "--output", str(home / "script"))
    installed = run_ludus(*script, env={"HOME": str(home)})
    assert installed.returncode == 0 and str(home / "script") in (home / ".bashrc").read_text()
    program = home / "ludus"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m ludus "$@"\n')
    program.chmod(0o755)
    return home


@pytest.mark.parametrize(
    ("typed", "completions"),
    [
        ("ludus cur", {"curate"}),
        ("ludus push d", {"dataset"}),
        ("ludus collect --conc", {"--concurrency"}),
        ("ludus curate --to d", {"dpo"}),
        ("ludus collect word", {"wordle"}),
        ("ludus train grpo --steps 3 word", {"wordle"}),
        ("ludus curate scr", {"script"}),
        ("ludus train sft -o scr", {"script"}),
    ],
)
def test_the_shell_completes_commands_options_environments_and_files(
    typed: str, completions: set[str], completion: Path
) -> None:
    ask = ["bash", "--norc", "-c", COMPLETE, "ask", typed]
    done = subprocess.run(ask, cwd=completion, capture_output=True, text=True)
    assert {*done.stdout.split()} == completions, done.stderr


def test_of_an_option_that_is_given_twice_the_last_counts(tmp_path: Path) -> None:
    twice = ("-n", "5", "--num-episodes", "2", "--seed", "1", "--set", "seed=3", "--task", "rows=4")
    done = run_ludus("collect", "catch", *twice, "--task", "columns=3", "-o", str(tmp_path / "run"))
    assert done.returncode == 0, done.stderr
    first, _ = read_episodes(tmp_path / "run")
    assert first.task == {"rows": 4, "columns": 3, "seed": first.task["seed"]}
    assert json.loads((tmp_path / "run" / "run.json").read_text())["settings"]["seed"] == 3


def test_envs_lists_environments_and_describes_one() -> None:
    listed = run_ludus("envs").stdout
    for name in ("catch", "echo", "reasoning_gym", "wordle"):
        assert name in listed
    described = run_ludus("envs", "catch").stdout
    for heading in ("Tools:", "Observation:", "Reward:", "Episode end:", "Task arguments:"):
        assert heading in described
    assert "chain_sum" in run_ludus("envs", "reasoning_gym").stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("serve", "wordel"), "'wordle'"),
        (("serve", "echo", "--host", "0.0.0.0"), "--token"),
        (("envs", "nothing"), "'nothing'"),
        (("check", "catch:hard"), "'hard'"),
        (("play", "http://127.0.0.1:1"), "127.0.0.1:1"),
        (("init", "not a name"), "'not a name'"),
    ],
)
def test_an_error_is_one_line_and_exit_code_1(arguments: tuple[str, ...], words: str) -> None:
    done = run_ludus(*arguments)
    assert done.returncode == 1
    assert words in done.stderr and done.stderr.count("\n") == 1
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ("serve", "echo", "--prot", "1"),
        ("play", "catch", "--task", "{"),
        ("play", "catch", "--task", "3"),
        ("play", "catch", "--task", "{rows=3"),
    ],
)
def test_an_invalid_flag_is_named_with_exit_code_2(arguments: tuple[str, ...]) -> None:
    done = run_ludus(*arguments)
    assert done.returncode == 2 and arguments[2] in done.stderr


def run_without_module(module: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the program as if this module were not installed."""
    script = (
        "import importlib.util, sys\n"
        f"sys.modules[{module!r}] = None\n"
        "found = importlib.util.find_spec\n"
        f"importlib.util.find_spec = lambda name: None if name == {module!r} else found(name)\n"
        f"sys.argv = ['ludus', *{arguments!r}]\n"
        "from ludus.cli.main import main\n"
        "main()\n"
    )
    return subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)


@pytest.mark.parametrize(
    ("module", "arguments", "extra"),
    [
        ("fastapi", ("serve", "echo"), "serve"),
        ("reasoning_gym", ("check", "reasoning_gym"), "reasoning"),
        ("reasoning_gym", ("check", "reasoning_gym:chain_sum"), "reasoning"),
        ("reasoning_gym", ("serve", "reasoning_gym"), "reasoning"),
        ("reasoning_gym", ("play", "reasoning_gym"), "reasoning"),
    ],
)
def test_a_missing_extra_is_one_line_with_the_install_command(
    module: str, arguments: tuple[str, ...], extra: str
) -> None:
    done = run_without_module(module, *arguments)
    assert done.returncode == 1 and done.stderr.count("\n") == 1
    assert done.stderr.endswith(f"pip install 'ludus-rl[{extra}]'\n")


def test_envs_lists_usable_environments_despite_missing_packages() -> None:
    listed = run_without_module("reasoning_gym", "envs")
    assert listed.returncode == 0
    assert "wordle" in listed.stdout and "ludus-rl[reasoning]" in listed.stdout.replace("\n", "")


def test_a_port_in_use_is_reported() -> None:
    with served_by_program("echo") as program:
        port = program.url.rpartition(":")[2]
        done = run_ludus("serve", "echo", "--port", port)
    assert done.returncode == 1 and port in done.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_serve_stops_quietly_on_a_signal(number: signal.Signals) -> None:
    with served_by_program("echo") as program:
        assert httpx.get(f"{program.url}/health", trust_env=False).status_code == 200
        program.process.send_signal(number)
        output, _ = program.process.communicate(timeout=30)
        assert "Traceback" not in output and "Stopped." in output
        assert program.process.returncode == 0


def test_play_runs_an_episode() -> None:
    moves = "\n".join(["sideways", *["right"] * 9]) + "\n"
    done = run_ludus("play", "catch", "--seed", "3", typed=moves)
    assert done.returncode == 0
    assert "'sideways'" in done.stdout and "Reward 0" in done.stdout


def test_play_keeps_the_connection_alive_while_the_player_thinks() -> None:
    with serving("catch", ping_interval=0.2) as served:
        player = subprocess.Popen(
            [sys.executable, "-u", "-m", "ludus", "play", served.url],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert player.stdout is not None
        while "Rows left" not in player.stdout.readline():
            pass
        time.sleep(1.5)
        output, _ = player.communicate("left\n" * 9, timeout=60)
        assert served.sessions.metrics.total(RESUMED) == 0, "the connection was kept"
    assert player.returncode == 0 and "Reward" in output


def test_play_offers_several_tools_and_quit() -> None:
    done = run_ludus("play", "echo", typed="shout\necho_with_length hello\n")
    assert '{"message": "hello", "length": 5}' in done.stdout
    assert "Reward" not in done.stdout


def test_a_generated_package_passes_its_check_and_its_test(tmp_path: Path) -> None:
    made = run_ludus("init", "find-number", "--in", str(tmp_path))
    assert made.returncode == 0
    package = tmp_path / "find_number"
    again = run_ludus("init", "find-number", "--in", str(tmp_path))
    assert again.returncode == 1 and "exists already" in again.stderr
    taken = run_ludus("init", "sudoku", "--in", str(tmp_path))
    assert taken.returncode == 1 and "sudoku" in taken.stderr and not (tmp_path / "sudoku").exists()
    home = tmp_path / "site"
    install = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--no-deps",
        "--no-build-isolation",
    ]
    subprocess.run([*install, "--target", str(home), str(package)], check=True, timeout=120)
    env = {"PYTHONPATH": os.pathsep.join((str(home), PYTHONPATH))}
    checked = run_ludus("check", "find_number", env=env, cwd=tmp_path)
    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert "find_number" in run_ludus("envs", env=env, cwd=tmp_path).stdout
    tested = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(package / "tests")],
        env={**os.environ, **env},
        capture_output=True,
        text=True,
        timeout=120,
        cwd=package,
    )
    assert tested.returncode == 0 and "2 passed" in tested.stdout, tested.stdout


@pytest.mark.parametrize("name", ["random", "class", "ünï", "3d"])
def test_a_name_that_python_cannot_import_is_refused(name: str, tmp_path: Path) -> None:
    refused = run_ludus("init", name, "--in", str(tmp_path))
    assert refused.returncode == 1 and name in refused.stderr and not list(tmp_path.iterdir())


def test_a_folder_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    refused = run_ludus("init", "find_number", "--in", str(tmp_path / "file"))
    assert refused.returncode == 1 and refused.stderr.count("\n") == 1


LONG = """
from pathlib import Path
from world import Slow


class Long(Slow):
    \"\"\"Leaves a mark when it is played.\"\"\"

    def reset(self, *, seed: int | None = None) -> str:
        Path("begun").touch()
        return super().reset(seed=seed)
"""


def test_an_interrupted_check_prints_one_line(tmp_path: Path) -> None:
    (tmp_path / "long.py").write_text(LONG)
    command = ("check", "long:Long", "--seeds", "1000")
    with start_ludus(*command, cwd=tmp_path, env={"PYTHONPATH": PYTHONPATH}) as process:
        wait_until((tmp_path / "begun").exists, seconds=60)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=30)
    assert process.returncode == 130
    assert errors.split() == ["Interrupted."]


def test_a_server_that_dies_during_play_is_one_line() -> None:
    with served_by_program("catch") as program:
        player = subprocess.Popen(
            [sys.executable, "-u", "-m", "ludus", "play", program.url],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert player.stdin is not None and player.stdout is not None
        while "Rows left" not in player.stdout.readline():
            pass
        program.process.kill()
        program.process.wait()
        _, errors = player.communicate("left\n", timeout=60)
    assert player.returncode == 1
    assert errors.count("\n") == 1 and "Traceback" not in errors


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("collect",), "ENV is missing. `ludus collect --help` says what it is."),
        (
            ("train", "grpo", "catch", "-m", "m"),
            "--output-dir is missing.",
        ),
        (("collect", "catch", "--num-episodes"), "--num-episodes needs a value."),
        (("collect", "catch", "more"), "Unexpected argument: more."),
    ],
)
def test_a_wrong_command_line_is_explained_in_one_line(
    arguments: tuple[str, ...], message: str
) -> None:
    done = run_ludus(*arguments)
    assert done.returncode == 2 and done.stderr.startswith(message)
    assert done.stderr.count("\n") == 1
