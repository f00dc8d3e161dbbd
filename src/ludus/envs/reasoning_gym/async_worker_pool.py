"""Worker processes driven by an event loop, for a thousand concurrent sessions without threads.

Threads would be simpler, but slow a collector down by a third: each thread that waits for a reply
contends with the event loop for the GIL.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections import deque
from dataclasses import dataclass, field
from weakref import WeakKeyDictionary

from pydantic_core import from_json

from ludus.envs.reasoning_gym.worker_pool import (
    MAX_WORKERS,
    SPAWN_DELAY_S,
    Reply,
    WorkerPool,
    WorkerProcess,
    WorkerTimeout,
    encode_request,
    process_pool,
)

MAX_PIPELINED = 2
"""Requests per worker: the next one is already in its pipe while a reply is sent back."""
WARMUP_REQUEST = encode_request("names", limit=120)
"""The first request to a new worker, which makes it load the library; that takes seconds."""
_READ_BYTES = 1 << 20


@dataclass(eq=False, slots=True)
class WorkerRequest:
    """A request to a worker, and the future of its reply."""

    line: bytes
    reply: asyncio.Future[Reply]
    asked_at: float = field(default_factory=time.monotonic)
    retried: bool = False
    """Whether a worker was lost on it."""

    @property
    def is_overdue(self) -> bool:
        """Whether it waits for so long that another worker may be started."""
        return not self.reply.done() and time.monotonic() - self.asked_at > SPAWN_DELAY_S


@dataclass(eq=False)
class WorkerPipe:
    """The pipes of a worker; replies come in the order of the requests."""

    process: WorkerProcess
    ready: bool = True
    """Whether the worker has loaded the library, as far as is known."""
    in_flight: deque[WorkerRequest] = field(default_factory=deque)
    unsent: bytearray = field(default_factory=bytearray)
    unread: bytearray = field(default_factory=bytearray)


class AsyncWorkerPool:
    """The workers of one event loop."""

    def __init__(self, processes: WorkerPool) -> None:
        self.processes = processes
        self._loop = asyncio.get_running_loop()
        self._pipes: list[WorkerPipe] = []
        self._waiting: deque[WorkerRequest] = deque()
        self._check_scheduled = False

    async def ask(self, line: bytes) -> Reply:
        request = WorkerRequest(line, self._loop.create_future())
        self._waiting.append(request)
        self._dispatch()
        self._schedule_check()
        return await request.reply

    @property
    def is_closed(self) -> bool:
        return self._loop.is_closed()

    def release_workers(self) -> None:
        """Return the idle workers after the loop was closed; end the busy ones."""
        for pipe in self._pipes:
            if pipe.in_flight or pipe.unsent or not pipe.process.alive:
                self.processes.drop(pipe.process)
            else:
                os.set_blocking(pipe.process.reply_fd, True)
                os.set_blocking(pipe.process.request_fd, True)
                self.processes.give_back(pipe.process)
        self._pipes.clear()

    def _dispatch(self) -> None:
        """Send waiting requests to the least busy workers; to new ones only if none is ready."""
        if not self._pipes:
            self._add_worker()
        ready = [pipe for pipe in self._pipes if pipe.ready] or self._pipes
        while self._waiting:
            pipe = min(ready, key=lambda pipe: len(pipe.in_flight))
            if len(pipe.in_flight) >= MAX_PIPELINED:
                return
            self._send(pipe, self._waiting.popleft())

    def _send(self, pipe: WorkerPipe, request: WorkerRequest) -> None:
        if request.reply.done():
            return  # The caller was cancelled.
        self._enqueue(pipe, request)

    def _enqueue(self, pipe: WorkerPipe, request: WorkerRequest) -> None:
        pipe.in_flight.append(request)
        pipe.unsent += request.line + b"\n"
        self._write(pipe)

    def _write(self, pipe: WorkerPipe) -> None:
        try:
            sent = os.write(pipe.process.request_fd, pipe.unsent)
        except BlockingIOError:
            sent = 0
        except BrokenPipeError:
            return  # The worker has exited; `_read` handles that.
        del pipe.unsent[:sent]
        if pipe.unsent:
            self._loop.add_writer(pipe.process.request_fd, self._write, pipe)
        else:
            self._loop.remove_writer(pipe.process.request_fd)

    def _read(self, pipe: WorkerPipe) -> None:
        if pipe.process.killed:
            return  # The program is exiting while the loop still runs.
        data = os.read(pipe.process.reply_fd, _READ_BYTES)
        if not data:
            self._remove_dead_worker(pipe)
            return
        pipe.ready = True
        pipe.unread += data
        *replies, rest = pipe.unread.split(b"\n")
        pipe.unread = rest
        for reply in replies:
            request = pipe.in_flight.popleft()
            if not request.reply.done():
                request.reply.set_result(from_json(reply))
        self._dispatch()

    def _add_worker(self, *, new_worker: bool = False) -> WorkerPipe:
        pipe = WorkerPipe(self.processes.lend(new_worker=new_worker))
        os.set_blocking(pipe.process.reply_fd, False)
        os.set_blocking(pipe.process.request_fd, False)
        self._loop.add_reader(pipe.process.reply_fd, self._read, pipe)
        if self._pipes:
            # Until it has loaded the library, requests are faster on the other workers.
            pipe.ready = False
            self._enqueue(pipe, WorkerRequest(WARMUP_REQUEST, _resolved_future(self._loop)))
        self._pipes.append(pipe)
        return pipe

    def _remove_dead_worker(self, pipe: WorkerPipe) -> None:
        """Handle the exit of a worker: its first request caused it, the others are sent again."""
        self._loop.remove_reader(pipe.process.reply_fd)
        self._loop.remove_writer(pipe.process.request_fd)
        self._pipes.remove(pipe)
        error = pipe.process.exit_error()
        self.processes.drop(pipe.process)
        if pipe.in_flight and not (request := pipe.in_flight.popleft()).reply.done():
            if request.retried or isinstance(error, WorkerTimeout):
                request.reply.set_exception(error)
            else:
                # Something else ended the worker, and may have ended the idle ones too.
                request.retried = True
                self._send(self._add_worker(new_worker=True), request)
        self._waiting.extendleft(reversed(pipe.in_flight))
        if self._waiting:
            self._dispatch()

    def _schedule_check(self) -> None:
        if not self._check_scheduled:
            self._check_scheduled = True
            self._loop.call_later(SPAWN_DELAY_S, self._check)

    def _check(self) -> None:
        """Add a worker if requests wait for too long, and move requests away from slow workers."""
        self._check_scheduled = False
        slow = [pipe for pipe in self._pipes if pipe.in_flight and pipe.in_flight[0].is_overdue]
        behind = [request for pipe in slow for request in list(pipe.in_flight)[1:]]
        overdue = any(request.is_overdue for request in [*self._waiting, *behind])
        if overdue and len(self._pipes) < MAX_WORKERS:
            self._add_worker()
        if len(slow) < len(self._pipes):
            for pipe in slow:
                self._waiting.extendleft(reversed(self._take_back_pipelined(pipe)))
        self._dispatch()
        if self._waiting or any(pipe.in_flight for pipe in self._pipes):
            self._schedule_check()

    def _take_back_pipelined(self, pipe: WorkerPipe) -> list[WorkerRequest]:
        """Take back the requests behind the first one; the worker's replies to them are ignored."""
        head, *behind = pipe.in_flight
        pipe.in_flight = deque(
            [head, *(WorkerRequest(b"", _resolved_future(self._loop)) for _ in behind)]
        )
        return [request for request in behind if not request.reply.done()]


def _resolved_future(loop: asyncio.AbstractEventLoop) -> asyncio.Future[Reply]:
    """The future of a request whose reply is ignored."""
    future: asyncio.Future[Reply] = loop.create_future()
    future.set_result({})
    return future


_pools: WeakKeyDictionary[asyncio.AbstractEventLoop, AsyncWorkerPool] = WeakKeyDictionary()


async def ask_async(request: bytes) -> Reply:
    """Send a request to a worker and await the reply, in an event loop."""
    loop = asyncio.get_running_loop()
    pool, processes = _pools.get(loop), process_pool()
    if pool is None or pool.processes is not processes:
        for closed in [loop for loop, pool in _pools.items() if pool.is_closed]:
            _pools.pop(closed).release_workers()
        pool = _pools[loop] = AsyncWorkerPool(processes)
    return await pool.ask(request)
