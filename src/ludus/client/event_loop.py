"""Event loops: one in a background thread for synchronous callers of async code, and tasks.

`run_sync` also works in a notebook, where an event loop runs already. The loop starts on first use.
At exit, it waits for the coroutines that were started with `run_in_background`.
"""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures
import threading
from collections.abc import Callable, Coroutine
from functools import wraps
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

CLOSE_TIMEOUT_S = 5.0
"""Time that interrupted and background tasks get to finish."""

_lock = threading.Lock()
_loop: asyncio.AbstractEventLoop | None = None
_unfinished: set[asyncio.Task[None]] = set()


def run_sync(coroutine: Coroutine[object, None, T]) -> T:
    """Run a coroutine on the background loop and return its result.

    Ctrl-C cancels the coroutine and waits until it has cleaned up. Called from the background loop
    itself it would wait for itself, which raises `RuntimeError` instead.
    """
    loop = background_loop()
    if asyncio._get_running_loop() is loop:
        coroutine.close()
        raise RuntimeError(
            "A synchronous call would block Ludus's background event loop. Await the async client, "
            "or set `blocking = True` on the environment, which then runs in a thread."
        )
    tasks: list[asyncio.Task[T]] = []
    done = threading.Event()

    def start() -> None:
        task = loop.create_task(coroutine)
        tasks.append(task)
        task.add_done_callback(lambda _: done.set())

    def cancel() -> None:
        if tasks:
            tasks[0].cancel()
        else:
            coroutine.close()
            done.set()

    # Within `try`, because an interrupt can arrive as soon as the coroutine is scheduled.
    try:
        loop.call_soon_threadsafe(start)
        done.wait()
    except BaseException:
        loop.call_soon_threadsafe(cancel)
        done.wait(CLOSE_TIMEOUT_S)
        raise
    return tasks[0].result()


def to_sync(function: Callable[P, Coroutine[object, None, T]]) -> Callable[P, T]:
    """Wrap an async function for callers without a loop: it runs on the background loop."""

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        return run_sync(function(*args, **kwargs))

    return call


def run_in_background(coroutine: Coroutine[object, None, None]) -> None:
    """Start a coroutine on the background loop without waiting: for finalizers must not block."""
    loop = background_loop()

    def start() -> None:
        task = loop.create_task(coroutine)
        _unfinished.add(task)
        task.add_done_callback(_unfinished.discard)

    loop.call_soon_threadsafe(start)


def background_loop() -> asyncio.AbstractEventLoop:
    """The background loop, which is started on first use."""
    global _loop
    with _lock:
        if _loop is None:
            _loop = asyncio.new_event_loop()
            run = _run_forever
            threading.Thread(target=run, args=(_loop,), name="ludus-sync", daemon=True).start()
            atexit.register(_finish_background_tasks)
        return _loop


def _run_forever(loop: asyncio.AbstractEventLoop) -> None:
    """Run the loop until the process ends.

    A task that raises SystemExit gets it as its result, and asyncio raises it out of the loop as
    well. Without a restart everybody who waits for the loop would wait forever.
    """
    while True:
        try:
            return loop.run_forever()
        except (SystemExit, KeyboardInterrupt):
            continue


def _finish_background_tasks() -> None:
    async def finish_all() -> None:
        if _unfinished:
            await asyncio.wait(set(_unfinished), timeout=CLOSE_TIMEOUT_S)

    # With a time limit here too: code that blocks the loop must not keep the process from ending.
    future = asyncio.run_coroutine_threadsafe(finish_all(), background_loop())
    concurrent.futures.wait([future], CLOSE_TIMEOUT_S)


def run_async(main: Coroutine[object, None, T]) -> T:
    """Run a coroutine on uvloop if it is installed, else on asyncio's own loop."""
    try:
        from uvloop import new_event_loop
    except ImportError:
        return asyncio.run(main)
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        return runner.run(main)


def create_background_task(coroutine: Coroutine[object, None, T]) -> asyncio.Task[T]:
    """Create a task whose exception the event loop does not log if it is never awaited."""
    task = asyncio.ensure_future(coroutine)
    # Retrieving the exception is what keeps asyncio from logging it.
    task.add_done_callback(lambda task: task.cancelled() or task.exception())
    return task
