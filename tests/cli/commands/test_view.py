"""`ludus view` as a user starts it."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest
from generated_runs import write_run
from ludus_process import LUDUS, run_ludus
from world import wait_until


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


_WITHOUT_SCANS = """\
from ludus.cli.main import main
from ludus.viewer import library
library._SCAN_INTERVAL_S = 3600.0
main()
"""


@pytest.mark.parametrize("first_stops", [False, True])
def test_a_second_ctrl_c_ends_it_while_a_request_hangs(tmp_path: Path, first_stops: bool) -> None:
    rows = tmp_path / "data" / "train.jsonl"
    rows.parent.mkdir()
    rows.write_text('{"messages": []}\n')
    process = subprocess.Popen(
        [sys.executable, "-c", _WITHOUT_SCANS, "view"],
        stdout=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "COLUMNS": "200"},
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    assert process.stdout is not None
    address = re.search(r"http://127\.0\.0\.1:(\d+)/[\w-]+/", process.stdout.readline())
    assert address is not None
    rows.unlink()
    os.mkfifo(rows)
    try:
        with socket.create_connection(("127.0.0.1", int(address[1]))) as connection:
            path = f"{address[0]}api/rows?dataset=data"
            connection.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
            with rows.open("wb"):  # Once the request reads from it.
                process.send_signal(signal.SIGINT)
                if first_stops:
                    assert any("Stopped." in line for line in process.stdout)
                else:
                    wait_until(lambda: _is_refused(int(address[1])))
                process.send_signal(signal.SIGINT)
                assert process.wait(60) == -signal.SIGINT
    finally:
        process.kill()
        process.communicate()


def _is_refused(port: int) -> bool:
    with socket.socket() as connection:
        return connection.connect_ex(("127.0.0.1", port)) != 0


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
    write_run(tmp_path / "runs" / "one", 1)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        result = run_ludus("view", "--port", str(taken.getsockname()[1]), cwd=tmp_path)
    assert result.returncode == 1 and "in use" in result.stderr
