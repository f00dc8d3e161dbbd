"""The child processes that hold the reasoning_gym library: this module is their parent.

The library needs a process of its own. Questions depend on PYTHONHASHSEED and on the global random
numbers; generators print; scorers hand the answer to `eval`, and one that is large enough would
stop a server for good. In a child the hash seed is 0, each request has limits (`limits.py`), and
what goes over them costs the child alone.
What the children do is in `generate.py`.

They are asked by a thread that waits (`ask`), or by an event loop (`crew.py`).
"""

from __future__ import annotations

import atexit
import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

from pydantic_core import to_json

MAX_WORKERS = min(8, os.cpu_count() or 1)
SPAWN_DELAY_S = 0.5
"""Seconds that a request waits for a busy child before another one is started."""

_WORKER_ENV = {
    "PYTHONHASHSEED": "0",
    "PYTHONUTF8": "1",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
}

Reply = dict[str, Any]


def encode_request(method: str, *, limit: float, **arguments: Any) -> bytes:
    """A request, as a child reads it: what to do, and how many seconds of work it may take."""
    return to_json({"do": method, "limit": limit, "with": arguments})


class WorkerLost(RuntimeError):
    """The child ended before it replied."""


class WorkerTimeout(WorkerLost):
    """The child ended because it went over the time limit of the request."""


class WorkerCrashed(WorkerLost):
    """The child ended in native code: the request is tried on another, and may crash that too."""


_CRASH_SIGNALS = frozenset((signal.SIGABRT, signal.SIGFPE, signal.SIGILL, signal.SIGSEGV)) | {
    getattr(signal, "SIGBUS", signal.SIGSEGV)
}


class WorkerProcess:
    """One child process; it answers one request at a time, and ends with this process."""

    def __init__(self) -> None:
        root = str(Path(__file__).parents[3])
        path = os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH"))))
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-W", "ignore", "-m", "ludus.envs.reasoning_gym.worker_main"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, **_WORKER_ENV, "PYTHONPATH": path},
            # Some questions are about programs, which are run and may write files.
            cwd=tempfile.gettempdir(),
        )

        self.killed = False
        """Whether it was ended from here; its pipes are closed then."""

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    @property
    def request_fd(self) -> int:
        """Where requests are written to, as a file descriptor."""
        assert self._process.stdin is not None
        return self._process.stdin.fileno()

    @property
    def reply_fd(self) -> int:
        assert self._process.stdout is not None
        return self._process.stdout.fileno()

    def ask(self, request: bytes) -> Reply:
        """Write it, and wait for the reply."""
        pipes = self._process
        assert pipes.stdin is not None and pipes.stdout is not None
        reply = b""
        with suppress(BrokenPipeError):
            pipes.stdin.write(request + b"\n")
            pipes.stdin.flush()
            reply = pipes.stdout.readline()
        if not reply.endswith(b"\n"):
            raise self.exit_error()
        return dict(json.loads(reply))

    def exit_error(self) -> WorkerLost:
        """Why there will be no reply."""
        status = self._process.wait()
        kind = WorkerLost
        if hasattr(signal, "SIGPROF") and status == -signal.SIGPROF:
            kind = WorkerTimeout
        elif -status in _CRASH_SIGNALS:
            kind = WorkerCrashed
        return kind(f"The process of the reasoning_gym library ended with status {status}.")

    def kill(self) -> None:
        self.killed = True
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            with suppress(OSError):
                if pipe is not None:
                    pipe.close()


class WorkerPool:
    """As many children as there are requests that would else have to wait, within a limit."""

    def __init__(self) -> None:
        self._idle: queue.LifoQueue[WorkerProcess] = queue.LifoQueue()
        self._all: set[WorkerProcess] = set()
        self._lent: set[WorkerProcess] = set()
        self._lock = threading.Lock()

    def ask(self, request: bytes, *, new_worker: bool = False) -> Reply:
        child = self._spawn() if new_worker else self._acquire()
        try:
            reply = child.ask(request)
        except BaseException:
            # Its pipe may hold half a message now.
            self.drop(child)
            raise
        self.give_back(child)
        return reply

    def lend(self, *, new_worker: bool = False) -> WorkerProcess:
        """An idle child, or a new one, to somebody who keeps it: an event loop."""
        child = (None if new_worker else self._idle_worker()) or self._spawn()
        with self._lock:
            self._lent.add(child)
        return child

    def give_back(self, child: WorkerProcess) -> None:
        with self._lock:
            self._lent.discard(child)
        self._idle.put(child)

    def drop(self, child: WorkerProcess) -> None:
        child.kill()
        with self._lock:
            self._all.discard(child)
            self._lent.discard(child)

    def close(self) -> None:
        for child in tuple(self._all):
            self.drop(child)

    def _acquire(self) -> WorkerProcess:
        while True:
            try:
                child = self._idle.get(timeout=SPAWN_DELAY_S if self._all - self._lent else 0)
            except queue.Empty:
                if len(self._all) - len(self._lent) < MAX_WORKERS:
                    return self._spawn()
                continue
            if child.alive:
                return child
            self.drop(child)

    def _idle_worker(self) -> WorkerProcess | None:
        while True:
            try:
                child = self._idle.get_nowait()
            except queue.Empty:
                return None
            if child.alive:
                return child
            self.drop(child)

    def _spawn(self) -> WorkerProcess:
        child = WorkerProcess()
        with self._lock:
            self._all.add(child)
        return child


_pool = WorkerPool()
_inherited_pools: list[WorkerPool] = []


def process_pool() -> WorkerPool:
    """Those of this process."""
    return _pool


def ask(request: bytes) -> Reply:
    """A request to some child, and its reply."""
    try:
        return _pool.ask(request)
    except WorkerTimeout:
        raise
    except WorkerLost:
        # Something outside ended it, and may have ended the idle ones as well.
        return _pool.ask(request, new_worker=True)


def _reset_after_fork() -> None:
    """In a forked process: the pipes are still the parent's, and stay open unused."""
    global _pool
    _inherited_pools.append(_pool)
    _pool = WorkerPool()


atexit.register(lambda: _pool.close())
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_reset_after_fork)
