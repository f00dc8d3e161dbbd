"""Worker processes that run the reasoning_gym library, and the requests to them.

The library needs processes of its own. Questions depend on PYTHONHASHSEED and on the global random
number generators; generators print; scorers pass the answer to `eval`, and a large one would block
a server for ever. In a worker the hash seed is 0, and a request that exceeds its limits
(`limits.py`) ends only the worker. `worker_main.py` is the program of the workers.

`ask` sends a request from a thread and waits; `async_worker_pool.py` does it from an event loop.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import tempfile
import threading
from contextlib import suppress
from typing import Any

from pydantic_core import to_json

from ludus.environment.worker_processes import pool_per_process, worker_command, worker_env

MAX_WORKERS = min(8, os.cpu_count() or 1)
SPAWN_DELAY_S = 0.5
"""Time that a request waits for a busy worker before another one is started."""

_WORKER_ENV = {
    "PYTHONHASHSEED": "0",
    "PYTHONUTF8": "1",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
}

Reply = dict[str, Any]


def encode_request(method: str, *, limit: float, **arguments: Any) -> bytes:
    """Encode a request to a worker; `limit` is the CPU time that it may take, in seconds."""
    return to_json({"do": method, "limit": limit, "with": arguments})


class WorkerLost(RuntimeError):
    """The worker exited before it replied."""


class WorkerTimeout(WorkerLost):
    """The worker was ended because the request exceeded its time limit."""


class WorkerCrashed(WorkerLost):
    """The worker crashed in native code. The request is retried, and may crash another worker."""


_CRASH_SIGNALS = frozenset((signal.SIGABRT, signal.SIGFPE, signal.SIGILL, signal.SIGSEGV)) | {
    getattr(signal, "SIGBUS", signal.SIGSEGV)
}


class WorkerProcess:
    """A worker process. It handles one request at a time, and exits with this process."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            worker_command("ludus.envs.reasoning_gym.worker_main"),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=worker_env(**_WORKER_ENV),
            # Some questions are about programs, which are run and may write files.
            cwd=tempfile.gettempdir(),
        )
        self.killed = False
        """Whether `kill` was called; the pipes are closed then."""

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    @property
    def request_fd(self) -> int:
        """The file descriptor for requests."""
        assert self._process.stdin is not None
        return self._process.stdin.fileno()

    @property
    def reply_fd(self) -> int:
        assert self._process.stdout is not None
        return self._process.stdout.fileno()

    def ask(self, request: bytes) -> Reply:
        """Write a request and wait for the reply."""
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
        """The error for the exit status of a worker that did not reply."""
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
    """Starts workers while requests would have to wait, up to `MAX_WORKERS`."""

    def __init__(self) -> None:
        self._idle: queue.LifoQueue[WorkerProcess] = queue.LifoQueue()
        self._all: set[WorkerProcess] = set()
        self._lent: set[WorkerProcess] = set()
        self._lock = threading.Lock()

    def ask(self, request: bytes, *, new_worker: bool = False) -> Reply:
        worker = self._spawn() if new_worker else self._acquire()
        try:
            reply = worker.ask(request)
        except BaseException:
            # The pipe may hold an incomplete message.
            self.drop(worker)
            raise
        self.give_back(worker)
        return reply

    def lend(self, *, new_worker: bool = False) -> WorkerProcess:
        """Lend an idle worker, or a new one, to an event loop."""
        worker = (None if new_worker else self._idle_worker()) or self._spawn()
        with self._lock:
            self._lent.add(worker)
        return worker

    def give_back(self, worker: WorkerProcess) -> None:
        with self._lock:
            self._lent.discard(worker)
        self._idle.put(worker)

    def drop(self, worker: WorkerProcess) -> None:
        worker.kill()
        with self._lock:
            self._all.discard(worker)
            self._lent.discard(worker)

    def close(self) -> None:
        for worker in tuple(self._all):
            self.drop(worker)

    def _acquire(self) -> WorkerProcess:
        while True:
            try:
                worker = self._idle.get(timeout=SPAWN_DELAY_S if self._all - self._lent else 0)
            except queue.Empty:
                if len(self._all) - len(self._lent) < MAX_WORKERS:
                    return self._spawn()
                continue
            if worker.alive:
                return worker
            self.drop(worker)

    def _idle_worker(self) -> WorkerProcess | None:
        while True:
            try:
                worker = self._idle.get_nowait()
            except queue.Empty:
                return None
            if worker.alive:
                return worker
            self.drop(worker)

    def _spawn(self) -> WorkerProcess:
        worker = WorkerProcess()
        with self._lock:
            self._all.add(worker)
        return worker


process_pool = pool_per_process(WorkerPool)
"""Returns the pool of this process."""


def ask(request: bytes) -> Reply:
    """Send a request to a worker of the pool and wait for the reply."""
    try:
        return process_pool().ask(request)
    except WorkerTimeout:
        raise
    except WorkerLost:
        # Something else ended the worker, and may have ended the idle ones too.
        return process_pool().ask(request, new_worker=True)
