"""The `ludus` program as a user starts it: a process of its own."""

from __future__ import annotations

import atexit
import itertools
import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

LUDUS = [sys.executable, "-m", "ludus"]
_HEAVY = frozenset(("train", "hf", "--student"))
"""Words of commands that load torch; one that is missing here costs a second or two."""


def run_ludus(
    *arguments: str,
    cwd: Path | None = None,
    typed: str | None = None,
    env: Mapping[str, str] | None = None,
    timeout: float = 120,
) -> subprocess.CompletedProcess[str]:
    """Run it to its end, with a wide terminal so that nothing wraps."""
    everything = {**os.environ, "COLUMNS": "200", **(env or {})}
    if env and any(name.startswith("PYTHON") for name in env.keys() - {"PYTHONPATH"}):
        # What the interpreter reads when it starts is too late for a fork of one.
        return subprocess.run(
            [*LUDUS, *arguments],
            capture_output=True,
            text=True,
            input=typed,
            timeout=timeout,
            cwd=cwd,
            env=everything,
        )
    folder = str(Path(cwd or ".").absolute())
    command = json.dumps({"arguments": arguments, "cwd": folder, "env": everything}).encode()
    line = next(_lines("light" if _HEAVY.isdisjoint(arguments) else "heavy"))
    (said, says), (complained, complains) = os.pipe(), os.pipe()
    reads, types = os.pipe() if typed is not None else (os.dup(0), None)
    socket.send_fds(line, [command], [reads, says, complains])
    for theirs in (reads, says, complains):
        os.close(theirs)
    with ThreadPoolExecutor(3) as pool:
        output, complaint = pool.submit(_all_of, said), pool.submit(_all_of, complained)
        if types is not None:
            pool.submit(_type, types, typed or "").result(timeout)
        code = _end(line, timeout)
    shown = [*LUDUS, *arguments]
    return subprocess.CompletedProcess(shown, code, output.result(), complaint.result())


@cache
def _lines(load: str) -> Iterator[socket.socket]:
    """Lines to processes that fork, each in turn: one command's hashes are not the next one's."""
    return itertools.cycle([_line(load), _line(load)])


def _line(load: str) -> socket.socket:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    forking = subprocess.Popen(
        [sys.executable, Path(__file__).with_name("fork_server.py"), load, str(theirs.fileno())],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        pass_fds=[theirs.fileno()],
        env=env,
    )
    theirs.close()

    @atexit.register
    def ended() -> None:
        ours.close()
        forking.wait()

    return ours


def _end(line: socket.socket, timeout: float) -> int:
    """How it ended, with a minus where a signal did it, as `subprocess` tells it."""
    fork = int(line.recv(32))
    line.settimeout(timeout)
    try:
        return int(line.recv(32))
    except TimeoutError:
        os.kill(fork, signal.SIGKILL)
        line.settimeout(None)
        line.recv(32)
        raise subprocess.TimeoutExpired(LUDUS, timeout) from None
    finally:
        line.settimeout(None)


def _all_of(file: int) -> str:
    with os.fdopen(file) as text:
        return text.read()


def _type(file: int, typed: str) -> None:
    with suppress(BrokenPipeError), os.fdopen(file, "w") as text:
        text.write(typed)


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
