"""The `ludus` program as a user starts it: a process of its own."""

from __future__ import annotations

import atexit
import fcntl
import itertools
import json
import os
import pty
import re
import signal
import socket
import struct
import subprocess
import sys
import termios
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Self

LUDUS = [sys.executable, "-m", "ludus"]
_LOADS_A_MODEL = frozenset(("train", "run", "hf", "--student", "smollm2"))
"""Words of commands that load transformers; a word that is missing here costs a few seconds."""
_MAX_TRAINING_SERVERS = 2
Environment = tuple[tuple[str, str], ...]


def run_ludus(
    *arguments: str,
    cwd: Path | None = None,
    typed: str | None = None,
    env: Mapping[str, str] | None = None,
    timeout: float = 120,
) -> subprocess.CompletedProcess[str]:
    """Run the program to its end, with a wide terminal so that nothing wraps."""
    full_env = {**os.environ, "COLUMNS": "200", **(env or {})}
    if env and any(name.startswith("PYTHON") for name in env.keys() - {"PYTHONPATH"}):
        # A fork comes too late for what the interpreter reads when it starts.
        return subprocess.run(
            [*LUDUS, *arguments],
            capture_output=True,
            text=True,
            input=typed,
            timeout=timeout,
            cwd=cwd,
            env=full_env,
        )
    folder = str(Path(cwd or ".").absolute())
    request = json.dumps({"arguments": arguments, "cwd": folder, "env": full_env}).encode()
    server = _choose_server(arguments, full_env).requests
    (stdout, child_stdout), (stderr, child_stderr) = os.pipe(), os.pipe()
    child_stdin, stdin = os.pipe() if typed is not None else (os.dup(0), None)
    socket.send_fds(server, [request], [child_stdin, child_stdout, child_stderr])
    for file in (child_stdin, child_stdout, child_stderr):
        os.close(file)
    with ThreadPoolExecutor(3) as pool:
        output, errors = pool.submit(_read_all, stdout), pool.submit(_read_all, stderr)
        if stdin is not None:
            pool.submit(_write_all, stdin, typed or "").result(timeout)
        code = _wait_for_exit(server, timeout)
    return subprocess.CompletedProcess([*LUDUS, *arguments], code, output.result(), errors.result())


@contextmanager
def start_ludus(
    *arguments: str | Path, env: Mapping[str, str] | None = None, cwd: Path | None = None
) -> Iterator[subprocess.Popen[str]]:
    """Start the program in a process of its own, to be signalled; kill it at the end."""
    process = subprocess.Popen(
        [*LUDUS, *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=cwd,
        env={**os.environ, "COLUMNS": "200", **(env or {})},
        # Pytest may run as a background job, which ignores SIGINT and passes that on.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
            process.communicate()


def run_on_terminal(
    *arguments: str | Path, columns: int = 160, env: Mapping[str, str] | None = None
) -> tuple[int, str]:
    """Run the program on a pseudo-terminal; return its exit code and output."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 30, columns, 0, 0))
    full_env = {**os.environ, "TERM": "xterm-256color", **(env or {})}
    for name in ("COLUMNS", "LINES", "NO_COLOR"):
        full_env.pop(name, None)
    process = subprocess.Popen(
        [*LUDUS, *map(str, arguments)], stdin=theirs, stdout=theirs, stderr=theirs, env=full_env
    )
    os.close(theirs)
    drawn = bytearray()
    try:
        while chunk := os.read(ours, 65536):
            drawn += chunk
    except OSError:
        pass  # Linux raises EIO when the other side is closed.
    finally:
        os.close(ours)
    return process.wait(30), drawn.decode()


@dataclass
class ForkServer:
    """A process that forks for every command it is sent; see fork_server.py."""

    requests: socket.socket
    process: subprocess.Popen[bytes]

    @classmethod
    def start(cls, load: str, env: Mapping[str, str]) -> Self:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        script = Path(__file__).with_name("fork_server.py")
        process = subprocess.Popen(
            [sys.executable, script, load, str(theirs.fileno())],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            pass_fds=[theirs.fileno()],
            env=env,
        )
        theirs.close()
        server = cls(ours, process)
        atexit.register(server.stop)
        return server

    def stop(self) -> None:
        self.requests.close()
        self.process.wait()


@cache
def _light_servers() -> Iterator[ForkServer]:
    """Two servers in turn, so that consecutive commands differ in their hash seed."""
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return itertools.cycle([ForkServer.start("light", env), ForkServer.start("light", env)])


_training_servers: dict[Environment, ForkServer] = {}
"""By environment, which transformers and TRL read on import; the least recently used first."""
_environments_seen: set[Environment] = set()


def _choose_server(arguments: Sequence[str], env: Mapping[str, str]) -> ForkServer:
    """A training server for a command that loads a model, unless its environment is a new one.

    Such a server takes seconds to start, which pays off from the second command on.
    """
    key = tuple(sorted(env.items()))
    words = {word.partition(":")[0] for word in arguments}
    if _LOADS_A_MODEL.isdisjoint(words) or key not in _environments_seen:
        _environments_seen.add(key)
        return next(_light_servers())
    server = _training_servers.pop(key, None) or ForkServer.start("training", env)
    _training_servers[key] = server
    if len(_training_servers) > _MAX_TRAINING_SERVERS:
        _training_servers.pop(next(iter(_training_servers))).stop()
    return server


def _wait_for_exit(server: socket.socket, timeout: float) -> int:
    """The exit code, negative for a signal, as in `subprocess`."""
    pid = int(server.recv(32))
    server.settimeout(timeout)
    try:
        return int(server.recv(32))
    except TimeoutError:
        os.kill(pid, signal.SIGKILL)
        server.settimeout(None)
        server.recv(32)
        raise subprocess.TimeoutExpired(LUDUS, timeout) from None
    finally:
        server.settimeout(None)


def _read_all(file: int) -> str:
    with os.fdopen(file) as text:
        return text.read()


def _write_all(file: int, typed: str) -> None:
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
def served_by_program(
    spec: str,
    *options: str,
    cwd: Path | None = None,
    command: str = "serve",
    env: Mapping[str, str] | None = None,
) -> Iterator[Program]:
    """`ludus serve`, or another command that serves, on a free port."""
    process = subprocess.Popen(
        [*LUDUS, command, spec, "--port", "0", *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=cwd,
        env={**os.environ, "COLUMNS": "200", "PYTHONUNBUFFERED": "1", **(env or {})},
    )
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        if line.startswith("Loading"):
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
