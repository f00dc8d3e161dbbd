"""Children that an event loop watches: a thousand sessions ask them without a single thread.

Threads would be simpler, and cost a collector a third of its speed: each of them takes the
interpreter away from the loop just when a reply has come.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections import deque
from dataclasses import dataclass, field
from weakref import WeakKeyDictionary

from pydantic_core import from_json

from ludus.envs.reasoning_gym.workers import (
    MAX_WORKERS,
    SPAWN_DELAY_S,
    Reply,
    WorkerLost,
    WorkerPool,
    WorkerProcess,
    WorkerTimeout,
    encode_request,
    process_pool,
)

MAX_PIPELINED = 2
"""Requests that a child has at a time: the next one lies ready while a reply is on its way."""
WARMUP_REQUEST = encode_request("names", limit=120)
"""What a newborn child is asked first. It loads the library for it, which takes seconds."""
_READ_BYTES = 1 << 20


@dataclass(eq=False, slots=True)
class QueuedRequest:
    """A line for a child, and who waits for the reply."""

    line: bytes
    reply: asyncio.Future[Reply]
    asked_at: float = field(default_factory=time.monotonic)
    retried: bool = False
    """Whether a child was lost over it."""


@dataclass(eq=False)
class WorkerPipe:
    """One child; its replies come in the order of the requests."""

    process: WorkerProcess
    ready: bool = True
    """Whether it has loaded the library, as far as is known."""
    in_flight: deque[QueuedRequest] = field(default_factory=deque)
    unsent: bytearray = field(default_factory=bytearray)
    unread: bytearray = field(default_factory=bytearray)


class AsyncWorkerPool:
    """The children of one event loop."""

    def __init__(self, processes: WorkerPool) -> None:
        self._processes = processes
        self._loop = asyncio.get_running_loop()
        self._pipes: list[WorkerPipe] = []
        self._waiting: deque[QueuedRequest] = deque()
        self._check_scheduled = False

    async def ask(self, line: bytes) -> Reply:
        request = QueuedRequest(line, self._loop.create_future())
        self._waiting.append(request)
        self._dispatch()
        self._schedule_check()
        return await request.reply

    @property
    def is_closed(self) -> bool:
        return self._loop.is_closed()

    def release_workers(self) -> None:
        """The loop is closed: others may have the children that owe it nothing."""
        for line in self._pipes:
            if line.in_flight or line.unsent or not line.process.alive:
                self._processes.drop(line.process)
            else:
                os.set_blocking(line.process.reply_fd, True)
                os.set_blocking(line.process.request_fd, True)
                self._processes.give_back(line.process)
        self._pipes.clear()

    def _dispatch(self) -> None:
        """Give requests to children that have few, and to newborn ones only where all are."""
        if not self._pipes:
            self._add_worker()
        able = [line for line in self._pipes if line.ready] or self._pipes
        while self._waiting:
            line = min(able, key=lambda line: len(line.in_flight))
            if len(line.in_flight) >= MAX_PIPELINED:
                return
            self._send(line, self._waiting.popleft())

    def _send(self, line: WorkerPipe, request: QueuedRequest) -> None:
        if request.reply.done():
            return  # Nobody waits for it any more.
        self._enqueue(line, request)

    def _enqueue(self, line: WorkerPipe, request: QueuedRequest) -> None:
        line.in_flight.append(request)
        line.unsent += request.line + b"\n"
        self._write(line)

    def _write(self, line: WorkerPipe) -> None:
        try:
            sent = os.write(line.process.request_fd, line.unsent)
        except BlockingIOError:
            sent = 0
        except BrokenPipeError:
            return  # The reader will hear of it.
        del line.unsent[:sent]
        if line.unsent:
            self._loop.add_writer(line.process.request_fd, self._write, line)
        else:
            self._loop.remove_writer(line.process.request_fd)

    def _read(self, line: WorkerPipe) -> None:
        if line.process.killed:
            return  # As the program ends, on a loop that nobody has stopped.
        data = os.read(line.process.reply_fd, _READ_BYTES)
        if not data:
            self._remove_dead_worker(line)
            return
        line.ready = True
        line.unread += data
        *replies, rest = line.unread.split(b"\n")
        line.unread = rest
        for reply in replies:
            request = line.in_flight.popleft()
            if not request.reply.done():
                request.reply.set_result(from_json(reply))
        self._dispatch()

    def _add_worker(self, *, new_worker: bool = False) -> WorkerPipe:
        line = WorkerPipe(self._processes.lend(new_worker=new_worker))
        os.set_blocking(line.process.reply_fd, False)
        os.set_blocking(line.process.request_fd, False)
        self._loop.add_reader(line.process.reply_fd, self._read, line)
        if self._pipes:
            # Whoever is given to it now would wait longer than for one of the others.
            line.ready = False
            self._enqueue(line, QueuedRequest(WARMUP_REQUEST, _resolved_future(self._loop)))
        self._pipes.append(line)
        return line

    def _remove_dead_worker(self, line: WorkerPipe) -> None:
        """The child has ended: the request that it was at is to blame, the others are not."""
        self._loop.remove_reader(line.process.reply_fd)
        self._loop.remove_writer(line.process.request_fd)
        self._pipes.remove(line)
        error = line.process.exit_error()
        self._processes.drop(line.process)
        if line.in_flight:
            self._retry_or_fail(line.in_flight.popleft(), error)
        self._waiting.extendleft(reversed(line.in_flight))
        if self._waiting:
            self._dispatch()

    def _retry_or_fail(self, request: QueuedRequest, error: WorkerLost) -> None:
        if request.reply.done():
            return
        if request.retried or isinstance(error, WorkerTimeout):
            request.reply.set_exception(error)
        else:
            # Something outside ended it, and may have ended the other children as well.
            request.retried = True
            self._send(self._add_worker(new_worker=True), request)

    def _schedule_check(self) -> None:
        if not self._check_scheduled:
            self._check_scheduled = True
            self._loop.call_later(SPAWN_DELAY_S, self._check)

    def _check(self) -> None:
        """Hire another child when requests wait, and let none wait behind a slow one."""
        self._check_scheduled = False
        slow = [line for line in self._pipes if line.in_flight and _is_overdue(line.in_flight[0])]
        behind = [request for line in slow for request in list(line.in_flight)[1:]]
        kept_waiting = [request for request in [*self._waiting, *behind] if _is_overdue(request)]
        if kept_waiting and len(self._pipes) < MAX_WORKERS:
            self._add_worker()
        if len(slow) < len(self._pipes):
            for line in slow:
                self._waiting.extendleft(reversed(self._take_back_pipelined(line)))
        self._dispatch()
        if self._waiting or any(line.in_flight for line in self._pipes):
            self._schedule_check()

    def _take_back_pipelined(self, line: WorkerPipe) -> list[QueuedRequest]:
        """The requests behind the one that a child is at; its replies to them will not be heard."""
        head, *behind = line.in_flight
        line.in_flight = deque(
            [head, *(QueuedRequest(b"", _resolved_future(self._loop)) for _ in behind)]
        )
        return [request for request in behind if not request.reply.done()]


def _is_overdue(request: QueuedRequest) -> bool:
    return not request.reply.done() and time.monotonic() - request.asked_at > SPAWN_DELAY_S


def _resolved_future(loop: asyncio.AbstractEventLoop) -> asyncio.Future[Reply]:
    """For a request whose reply will come, though nobody waits for it."""
    future: asyncio.Future[Reply] = loop.create_future()
    future.set_result({})
    return future


_pools: WeakKeyDictionary[asyncio.AbstractEventLoop, AsyncWorkerPool] = WeakKeyDictionary()


async def ask_async(request: bytes) -> Reply:
    """A request to some child, and its reply, without a thread."""
    loop = asyncio.get_running_loop()
    crew = _pools.get(loop)
    home = process_pool()
    if crew is None or crew._processes is not home:
        for old in [loop for loop, crew in _pools.items() if crew.is_closed]:
            _pools.pop(old).release_workers()
        crew = _pools[loop] = AsyncWorkerPool(home)
    return await crew.ask(request)
