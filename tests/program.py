"""The `ludus` program as a user starts it: a process of its own."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

LUDUS = [sys.executable, "-m", "ludus"]


def run_ludus(
    *arguments: str,
    cwd: Path | None = None,
    typed: str | None = None,
    env: Mapping[str, str] | None = None,
    timeout: float = 120,
) -> subprocess.CompletedProcess[str]:
    """Run it to its end, with a wide terminal so that nothing wraps."""
    return subprocess.run(
        [*LUDUS, *arguments],
        capture_output=True,
        text=True,
        input=typed,
        timeout=timeout,
        cwd=cwd,
        env={**os.environ, "COLUMNS": "200", **(env or {})},
    )


@dataclass
class Program:
    """A server that runs in another process."""

    url: str
    process: subprocess.Popen[str]

    @property
    def ws(self) -> str:
        return self.url.replace("http", "ws", 1) + "/ws"


@contextmanager
def served_by_program(spec: str, *options: str, cwd: Path | None = None) -> Iterator[Program]:
    """`ludus serve` on a free port."""
    process = subprocess.Popen(
        [*LUDUS, "serve", spec, "--port", "0", *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=cwd,
        env={**os.environ, "COLUMNS": "200", "PYTHONUNBUFFERED": "1"},
    )
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        found = re.search(r"http://[\d.]+:\d+", line)
        assert found, line + process.stdout.read()
        yield Program(found.group(), process)
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
        try:
            process.communicate(timeout=60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            raise
