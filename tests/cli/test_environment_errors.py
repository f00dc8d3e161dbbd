"""`check`, `play` and `collect` report an exception of an environment once, with its location."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from ludus_process import run_ludus, served_by_program

from ludus.check import CheckReport

SOURCE = '''
from ludus import ToolCall, ToolEnvironment, tool


class Base(ToolEnvironment):
    """Guess the number."""

    def reset(self, *, seed: int | None = None) -> str:
        self.number = (seed or 0) % 3
        return f"Guess {self.number}."

    @tool
    def guess(self, number: int) -> str:
        """Guess.

        Args:
            number: The number.
        """
        return self.finish(1.0 / number and 1.0, "Right.")

    def oracle(self):
        return ToolCall(name="guess", arguments={"number": self.number})


class Always(Base):
    def oracle(self):
        return ToolCall(name="guess", arguments={"number": 0})


class Silent(Base):
    def reset(self, *, seed: int | None = None):
        self.number = 1


class Passive(Base):
    def oracle(self):
        return None


class Undocumented(Base):
    @tool
    def think(self, number: int) -> str:
        return "?"
'''
ERROR_LINE = "guessing.py:19 in guess: ZeroDivisionError: float division by zero"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "guessing.py").write_text(SOURCE)
    return tmp_path


def check_report(folder: Path, name: str) -> CheckReport:
    done = run_ludus("check", f"guessing.py:{name}", "--json", cwd=folder)
    assert done.returncode == 1, done.stderr
    return CheckReport.model_validate(json.loads(done.stdout))


def test_check_reports_an_exception_once_with_advice(folder: Path) -> None:
    (failure,) = check_report(folder, "Always").failures
    assert (failure.check, failure.detail) == ("plays an episode", ERROR_LINE)
    assert failure.advice
    done = run_ludus("check", "guessing.py:Always", cwd=folder)
    assert done.stdout.count(ERROR_LINE) == 1 and failure.advice in done.stdout
    assert "1 failed" in done.stdout and "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("name", "check", "detail"),
    [
        ("Silent", "resets", "guessing.py:31: "),
        ("Passive", "plays an episode", "oracle() "),
        ("Undocumented", "starts", "guessing.py:41: tool Undocumented.think "),
    ],
)
def test_a_missing_part_fails_one_check(folder: Path, name: str, check: str, detail: str) -> None:
    (failure,) = check_report(folder, name).failures
    assert (failure.check, failure.detail[: len(detail)]) == (check, detail)
    assert failure.advice


def test_play_and_collect_report_an_exception_once(folder: Path) -> None:
    played = run_ludus("play", "guessing.py:Always", typed="0\n", cwd=folder)
    assert (played.returncode, played.stderr) == (1, f"{ERROR_LINE}\n")
    done = run_ludus("collect", "guessing.py:Always", "-n", "4", "--max-attempts", "1", cwd=folder)
    assert (done.returncode, done.stderr.count(ERROR_LINE)) == (1, 1)


def test_a_run_with_broken_episodes_reports_the_location(folder: Path) -> None:
    command = ("collect", "guessing.py:Base", "-n", "12", "--max-attempts", "1")
    done = run_ludus(*command, "-o", "run", cwd=folder)
    assert (done.returncode, done.stdout.count(ERROR_LINE)) == (0, 1), done.stderr
    done = run_ludus(*command, "-o", "machine", "--json", cwd=folder)
    assert json.loads(done.stdout.splitlines()[-1])["environment_faults"] == [ERROR_LINE]


@pytest.mark.parametrize(
    "command", [("check",), ("collect", "-n", "3", "--max-attempts", "2"), ("play",)]
)
def test_debug_prints_the_traceback_once(folder: Path, command: tuple[str, ...]) -> None:
    name, *options = command
    done = run_ludus(name, "guessing.py:Always", *options, "--debug", typed="0\n", cwd=folder)
    assert (done.returncode, done.stderr.count("Traceback")) == (1, 1)
    assert "line 19, in guess" in done.stderr and "Traceback" not in done.stdout


def test_a_server_logs_an_exception_and_does_not_send_it(folder: Path) -> None:
    with served_by_program("guessing.py:Base", "--workers", "2", cwd=folder) as server:
        played = run_ludus("play", server.url, "--seed", "0", typed="0\n")
        server.process.terminate()
        assert server.process.stdout is not None
        log = server.process.stdout.read()
    assert played.returncode == 1
    assert "ZeroDivisionError" in played.stderr and "guessing.py" not in played.stderr
    assert log.count(ERROR_LINE) == 1
