"""`ludus view` as a user starts it."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import urllib.request
from pathlib import Path

import pytest
from generated_runs import write_run
from ludus_process import LUDUS, run_ludus


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_page_is_served_until_a_signal(tmp_path: Path, number: signal.Signals) -> None:
    write_run(tmp_path / "runs" / "one", 5)
    process = subprocess.Popen(
        [*LUDUS, "view"],
        stdout=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "COLUMNS": "200"},
    )
    assert process.stdout is not None
    address = re.search(r"http://127\.0\.0\.1:\d+/[\w-]{30,}/", process.stdout.readline())
    assert address is not None
    with urllib.request.urlopen(f"{address[0]}api/state") as response:
        assert b'"runs/one"' in response.read()
    process.send_signal(number)
    rest, _ = process.communicate(timeout=60)
    assert process.returncode == 0 and "Stopped." in rest


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["missing/folder"], "missing/folder"),
        (["empty"], "nothing to view"),
        (["--port", "70000", "."], "--port"),
    ],
)
def test_a_mistake_is_one_line(tmp_path: Path, arguments: list[str], expected: str) -> None:
    (tmp_path / "empty").mkdir()
    result = run_ludus("view", *arguments, cwd=tmp_path)
    assert result.returncode == 1
    assert expected in result.stderr and len(result.stderr.strip().splitlines()) == 1


def test_a_port_in_use_is_reported(tmp_path: Path) -> None:
    import socket

    write_run(tmp_path / "runs" / "one", 1)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        result = run_ludus("view", "--port", str(taken.getsockname()[1]), cwd=tmp_path)
    assert result.returncode == 1 and "in use" in result.stderr
