"""Worker processes: programs that answer requests of the process that started them.

They run what must not run here: libraries that draw on global state, print or hang, and browsers.
A request and its reply are one line of JSON each. `WorkerPool` keeps the workers of this process,
for threads, for sessions that need one alone, and for event loops.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import select
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, BinaryIO, Generic, TypeVar

from pydantic_core import from_json

if TYPE_CHECKING:
    from ludus.data.tool_schema import JsonObject

SPAWN_DELAY_S = 0.5
"""Time that a request of an event loop waits for a busy worker before another one is started."""
_READ_BYTES = 1 << 20
_CRASH_SIGNALS = {
    getattr(signal, name, None) for name in ("SIGABRT", "SIGBUS", "SIGFPE", "SIGILL", "SIGSEGV")
}


class WorkerLost(RuntimeError):
    """The worker did not reply. It has to be dropped."""


class WorkerTimeout(WorkerLost):
    """The worker did not reply in time, or exceeded its limit of CPU time."""


class WorkerCrashed(WorkerLost):
    """The worker crashed in native code."""


def worker_command(module: str) -> list[str]:
    """The command that runs a module of Ludus; needs the variables of `worker_env`."""
    return [sys.executable, "-P", "-W", "ignore", "-m", module]


def worker_env(**variables: str) -> dict[str, str]:
    """The environment variables of this process and these, and a path on which Ludus is found."""
    root = str(Path(__file__).parents[2])
    path = os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH"))))
    return {**os.environ, **variables, "PYTHONPATH": path}


def open_worker_pipes() -> tuple[BinaryIO, BinaryIO]:
    """In a worker: its requests and replies. What it runs reads nothing and prints nowhere."""
    requests, replies = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    devnull = os.open(os.devnull, os.O_RDWR)
    os.dup2(devnull, 0)
    os.dup2(devnull, 1)
    return requests, replies


class WorkerProcess:
    """A process that runs a module of Ludus. It handles one request at a time.

    It exits with this process, whose end is the end of its input.
    """

    def __init__(self, module: str, *, stderr: int | None = None, **variables: str) -> None:
        self.module = module
        self._process = subprocess.Popen(
            worker_command(module),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stderr,
            env=worker_env(**variables),
            # Some libraries write files.
            cwd=tempfile.gettempdir(),
            # A Ctrl-C in the terminal is for this process alone.
            start_new_session=True,
        )
        assert self._process.stdin is not None and self._process.stdout is not None
        self._requests: IO[bytes] = self._process.stdin
        self._replies: IO[bytes] = self._process.stdout
        self._unread = bytearray()
        self.killed = False
        """Whether `kill` was called; the pipes are closed then."""

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    @property
    def reply_fd(self) -> int:
        return self._replies.fileno()

    def ask(self, request: bytes, *, timeout_s: float | None = None) -> JsonObject:
        """Send a request and wait for the reply; raises `WorkerLost`."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        self.send(request)
        reply = None
        while reply is None:
            if deadline is not None:
                poll = select.poll()
                poll.register(self.reply_fd, select.POLLIN)
                if not poll.poll(max(0.0, 1000 * (deadline - time.monotonic()))):
                    raise WorkerTimeout(f"The worker did not answer within {timeout_s:g} s.")
            reply = self.receive()
        return reply

    def send(self, request: bytes) -> None:
        """Write a request. If the worker has exited, `receive` says so."""
        with suppress(BrokenPipeError):
            self._requests.write(request + b"\n")
            self._requests.flush()

    def receive(self) -> JsonObject | None:
        """Read available bytes of a reply; returns it once it is complete."""
        data = os.read(self.reply_fd, _READ_BYTES)
        if not data:
            status = self._process.wait()
            kind = WorkerLost
            if hasattr(signal, "SIGPROF") and status == -signal.SIGPROF:
                kind = WorkerTimeout
            elif -status in _CRASH_SIGNALS:
                kind = WorkerCrashed
            raise kind(f"The process of {self.module} ended with status {status}.")
        self._unread += data
        if not data.endswith(b"\n"):
            return None
        line, self._unread = self._unread, bytearray()
        reply: JsonObject = from_json(line)
        return reply

    def kill(self) -> None:
        self.killed = True
        self._process.kill()
        self._process.wait()
        for pipe in (self._requests, self._replies):
            with suppress(OSError):
                pipe.close()


WorkerT = TypeVar("WorkerT", bound=WorkerProcess)


class WorkerPool(Generic[WorkerT]):
    """The workers of one kind, which are started when they are needed.

    Args:
        start: starts a worker.
        max_workers: how many work at once for threads, and for each event loop.
        max_idle: how many are kept for those who need one later (all).
        idle_timeout_s: how long they are kept (always).
    """

    def __init__(
        self,
        start: Callable[[], WorkerT],
        *,
        max_workers: int = 1,
        max_idle: int | None = None,
        idle_timeout_s: float | None = None,
    ) -> None:
        self.max_workers = max_workers
        self.workers: set[WorkerT] = set()
        self._start, self._max_idle, self._idle_timeout_s = start, max_idle, idle_timeout_s
        self._idle: list[tuple[float, WorkerT]] = []
        self._lock = threading.Lock()
        self._slots = threading.BoundedSemaphore(max_workers)
        self._queues: dict[asyncio.AbstractEventLoop, _RequestQueue[WorkerT]] = {}

    def lend(self, *, new: bool = False) -> WorkerT:
        """Lend an idle worker process, or start one."""
        while not new:
            with self._lock:
                if not self._idle:
                    break
                _, worker = self._idle.pop()
            if worker.alive:
                return worker
            self.drop(worker)
        worker = self._start()
        with self._lock:
            self.workers.add(worker)
        return worker

    def give_back(self, worker: WorkerT) -> None:
        """Take a worker process back, and keep it or end it if there are enough."""
        with self._lock:
            keep = self._max_idle is None or len(self._idle) < self._max_idle
            if keep:
                self._idle.append((time.monotonic(), worker))
        if not keep:
            self.drop(worker)
        elif self._idle_timeout_s is not None:
            timer = threading.Timer(self._idle_timeout_s, self.end_idle, (self._idle_timeout_s,))
            timer.daemon = True
            timer.start()

    def drop(self, worker: WorkerT) -> None:
        worker.kill()
        with self._lock:
            self.workers.discard(worker)

    def end_idle(self, after_s: float = 0.0) -> None:
        """End the worker processes that have been idle for at least `after_s`."""
        with self._lock:
            latest = time.monotonic() - after_s
            expired = [worker for since, worker in self._idle if since <= latest]
            self._idle = [entry for entry in self._idle if entry[1] not in expired]
        for worker in expired:
            self.drop(worker)

    def close(self) -> None:
        """End all workers."""
        for worker in tuple(self.workers):
            self.drop(worker)

    def ask(self, request: bytes) -> JsonObject:
        """Send a request to any worker and wait for the reply, in a thread.

        If its worker is lost, a request is repeated on a new one, because something else may have
        ended the worker. A request that timed out is not repeated.
        """
        with self._slots:
            is_retry = False
            while True:
                worker = self.lend(new=is_retry)
                try:
                    reply = worker.ask(request)
                except BaseException as error:
                    # The pipe may hold an incomplete message.
                    self.drop(worker)
                    if is_retry or type(error) not in (WorkerLost, WorkerCrashed):
                        raise
                    is_retry = True
                else:
                    self.give_back(worker)
                    return reply

    async def ask_async(self, request: bytes) -> JsonObject:
        """`ask` for an event loop, on which thousands of requests may wait."""
        loop = asyncio.get_running_loop()
        queue = self._queues.get(loop)
        if queue is None:
            for closed in [each for each in self._queues if each.is_closed()]:
                self._queues.pop(closed).release_workers()
            queue = self._queues[loop] = _RequestQueue(self, loop)
        return await queue.ask(request)


@dataclass(eq=False, slots=True)
class _Request:
    line: bytes
    reply: asyncio.Future[JsonObject]
    asked_at: float
    retried: bool = False
    """Whether a worker was lost on it."""


class _RequestQueue(Generic[WorkerT]):
    """The requests of one event loop, and the workers that handle them.

    There are no threads: each one that waits for a reply would contend with the event loop for the
    GIL, and slow collection down by a third.
    """

    def __init__(self, pool: WorkerPool[WorkerT], loop: asyncio.AbstractEventLoop) -> None:
        self._pool, self._loop = pool, loop
        self._waiting: deque[_Request] = deque()
        self._busy: dict[WorkerT, _Request] = {}
        self._idle: list[WorkerT] = []
        self._timer: asyncio.TimerHandle | None = None

    async def ask(self, line: bytes) -> JsonObject:
        request = _Request(line, self._loop.create_future(), self._loop.time())
        self._waiting.append(request)
        self._dispatch()
        return await request.reply

    def release_workers(self) -> None:
        """Give back idle worker processes and end busy ones, after the loop was closed."""
        for worker in self._idle:
            self._pool.give_back(worker)
        for worker in self._busy:
            self._pool.drop(worker)

    def _dispatch(self) -> None:
        """Send requests to idle workers; while some wait, watch how long."""
        while self._waiting and (self._idle or not self._busy):
            request = self._waiting.popleft()
            if not request.reply.done():  # Otherwise the caller was cancelled.
                self._send(self._idle.pop() if self._idle else self._add_worker(), request)
        if self._waiting and self._timer is None:
            self._timer = self._loop.call_later(SPAWN_DELAY_S, self._add_worker_if_slow)

    def _add_worker_if_slow(self) -> None:
        self._timer = None
        if self._waiting and len(self._busy) < self._pool.max_workers:
            request = self._waiting[0]
            if self._loop.time() - request.asked_at >= SPAWN_DELAY_S:
                self._send(self._add_worker(), self._waiting.popleft())
        self._dispatch()

    def _add_worker(self, *, new: bool = False) -> WorkerT:
        worker = self._pool.lend(new=new)
        self._loop.add_reader(worker.reply_fd, self._read, worker)
        return worker

    def _send(self, worker: WorkerT, request: _Request) -> None:
        self._busy[worker] = request
        # This does not block, because the worker is waiting for it.
        worker.send(request.line)

    def _read(self, worker: WorkerT) -> None:
        if worker.killed:
            return  # The program is exiting while the loop still runs.
        try:
            reply = worker.receive()
        except WorkerLost as error:
            self._remove_lost_worker(worker, error)
        else:
            if reply is None:
                return
            request = self._busy.pop(worker)
            self._idle.append(worker)
            if not request.reply.done():
                request.reply.set_result(reply)
        self._dispatch()

    def _remove_lost_worker(self, worker: WorkerT, error: WorkerLost) -> None:
        self._loop.remove_reader(worker.reply_fd)
        self._pool.drop(worker)
        request = self._busy.pop(worker, None)
        if request is None:
            self._idle.remove(worker)
        elif request.reply.done():
            pass
        elif request.retried or isinstance(error, WorkerTimeout):
            request.reply.set_exception(error)
        else:
            # Something else ended the worker, and may have ended the idle ones too.
            request.retried = True
            self._send(self._add_worker(new=True), request)


def pool_per_process(
    create_pool: Callable[[], WorkerPool[WorkerT]],
) -> Callable[[], WorkerPool[WorkerT]]:
    """Return a function that returns the pool of this process, which is closed at exit.

    A forked process gets an empty pool. The inherited one is kept, because closing its pipes would
    end the workers of the parent.
    """
    pools = [create_pool()]
    atexit.register(lambda: pools[-1].close())
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=lambda: pools.append(create_pool()))
    return lambda: pools[-1]
