"""Daemon threads for blocking calls, awaited from asyncio.

Unlike in the standard thread pools, a call that hangs blocks only its own thread: the pool has no
maximum size, and the threads are daemons, so that the process can exit.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue
from typing import TypeVar, cast

T = TypeVar("T")


class WorkerThread:
    """One thread that runs calls in order."""

    def __init__(self) -> None:
        self._calls: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        threading.Thread(target=self._run, name="ludus-step", daemon=True).start()

    def submit(self, call: Callable[[], T]) -> asyncio.Future[T]:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()

        def resolve(result: T | None, error: BaseException | None) -> None:
            if future.cancelled():
                return
            if error is None:
                future.set_result(cast(T, result))
            elif isinstance(error, StopIteration):
                future.set_exception(RuntimeError(f"StopIteration: {error}"))
            else:
                future.set_exception(error)

        def run() -> None:
            try:
                outcome: tuple[T | None, BaseException | None] = call(), None
            except BaseException as caught:
                outcome = None, caught
            # The loop may be closed by the time a call that hung returns.
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(resolve, *outcome)

        self._calls.put(run)
        return future

    def stop(self) -> None:
        """End the thread after the calls that were submitted."""
        self._calls.put(None)

    def _run(self) -> None:
        while (call := self._calls.get()) is not None:
            call()


class WorkerThreads:
    """A pool with one thread per running call; idle threads are reused."""

    def __init__(self) -> None:
        self._idle: deque[WorkerThread] = deque()
        if hasattr(os, "register_at_fork"):
            # Threads do not exist in a forked process.
            os.register_at_fork(after_in_child=self._idle.clear)

    def submit(self, call: Callable[[], T]) -> asyncio.Future[T]:
        worker = self._idle.pop() if self._idle else WorkerThread()

        def call_and_release() -> T:
            try:
                return call()
            finally:
                self._idle.append(worker)

        return worker.submit(call_and_release)
