"""Worker processes, each with a browser of its own.

A browser that crashes or hangs ends with its worker, and breaks only the episode that it played. An
idle worker is kept for a while, because starting a browser takes seconds.
"""

from __future__ import annotations

import json
import subprocess
import tempfile
import threading
import time
from multiprocessing import Pipe
from typing import Any

from ludus.environment.worker_processes import pool_per_process, worker_command, worker_env
from ludus.envs.browsergym.process_tree import kill_descendants, remove_folder

LAUNCH_TIMEOUT_S = 120.0
EXIT_TIMEOUT_S = 15.0
MAX_IDLE = 4
IDLE_TIMEOUT_S = 60.0


class BrowserFailed(RuntimeError):
    """The browser crashed or hung. The episode is broken; the next reset gets another browser."""


class BrowserWorker:
    """A worker process. It handles one request at a time, and exits with this process."""

    def __init__(self, executable_path: str) -> None:
        self.executable_path = executable_path
        self._folder = tempfile.mkdtemp(prefix="ludus-browser-")
        self._connection, worker_end = Pipe()
        command = worker_command("ludus.envs.browsergym.worker_main")
        with worker_end:
            self._process = subprocess.Popen(
                [*command, str(worker_end.fileno())],
                pass_fds=[worker_end.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env=worker_env(TMPDIR=self._folder),
                # A Ctrl-C in the terminal must not reach the browser.
                start_new_session=True,
            )
        try:
            self.ask("launch", timeout=LAUNCH_TIMEOUT_S, executable_path=executable_path)
        except BaseException:
            self.kill()
            raise

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def ask(self, method: str, *, timeout: float, **arguments: Any) -> Any:
        """Send a request and wait for the reply; raises `BrowserFailed`."""
        try:
            self._connection.send_bytes(json.dumps([method, arguments]).encode())
            if not self._connection.poll(timeout):
                raise BrowserFailed(f"The browser did not answer within {timeout:g} s.")
            reply = json.loads(self._connection.recv_bytes())
        except (EOFError, OSError):
            raise BrowserFailed("The process of the browser ended.") from None
        if "fault" in reply:
            raise BrowserFailed(f"The browser failed: {reply['fault']}")
        return reply["value"]

    def kill(self) -> None:
        """End the worker and its browser, even if they hang."""
        # The worker cleans up when the connection ends. It is killed only if it does not.
        self._connection.close()
        try:
            self._process.wait(EXIT_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            kill_descendants(self.pid)
            self._process.kill()
            self._process.wait()
        remove_folder(self._folder)


class WorkerPool:
    """The idle workers of this process."""

    def __init__(self) -> None:
        self._idle: list[tuple[float, BrowserWorker]] = []
        self._lock = threading.Lock()

    def acquire(self, executable_path: str) -> BrowserWorker:
        """An idle worker, or a new one."""
        while (worker := self._pop(executable_path)) is not None:
            if worker.alive:
                return worker
            worker.kill()
        return BrowserWorker(executable_path)

    def release(self, worker: BrowserWorker) -> None:
        """Keep a worker whose browser works for `IDLE_TIMEOUT_S`, or end it if enough are idle."""
        with self._lock:
            keep = len(self._idle) < MAX_IDLE
            if keep:
                self._idle.append((time.monotonic(), worker))
        if keep:
            timer = threading.Timer(IDLE_TIMEOUT_S, self._kill_expired)
            timer.daemon = True
            timer.start()
        else:
            worker.kill()

    def close(self) -> None:
        with self._lock:
            idle, self._idle = self._idle, []
        for _, worker in idle:
            worker.kill()

    def _pop(self, executable_path: str) -> BrowserWorker | None:
        with self._lock:
            for entry in reversed(self._idle):
                if entry[1].executable_path == executable_path:
                    self._idle.remove(entry)
                    return entry[1]
        return None

    def _kill_expired(self) -> None:
        with self._lock:
            expired = [
                worker for since, worker in self._idle if time.monotonic() - since >= IDLE_TIMEOUT_S
            ]
            self._idle = [entry for entry in self._idle if entry[1] not in expired]
        for worker in expired:
            worker.kill()


process_pool = pool_per_process(WorkerPool)
"""Returns the pool of this process."""
