"""One event loop in a background thread, on which code that does not await has its sessions.

It begins with the first use and ends with the process, after what is to be closed was closed.
"""

from __future__ import annotations

import asyncio
import atexit
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")

LAST_WORDS = 5.0
"""Seconds that closing may take when the process ends."""

_lock = threading.Lock()
_loop: asyncio.AbstractEventLoop | None = None
_unfinished: set[asyncio.Task[None]] = set()


def wait_for(work: Coroutine[Any, Any, T]) -> T:
    """Run it on the loop and wait for what it gives. Never call this on the loop itself."""
    future = asyncio.run_coroutine_threadsafe(work, running())
    try:
        return future.result()
    except BaseException:
        future.cancel()
        raise


def leave_to(work: Coroutine[Any, Any, None]) -> None:
    """Run it on the loop some time, without waiting: a garbage collector must not wait."""
    loop = running()
    loop.call_soon_threadsafe(lambda: _begin(loop, work))


def running() -> asyncio.AbstractEventLoop:
    """The loop, begun if need be."""
    global _loop
    with _lock:
        if _loop is None:
            _loop = asyncio.new_event_loop()
            threading.Thread(target=_loop.run_forever, name="ludus-trl", daemon=True).start()
            atexit.register(_finish)
        return _loop


def _begin(loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, None]) -> None:
    task = loop.create_task(work)
    _unfinished.add(task)
    task.add_done_callback(_unfinished.discard)


def _finish() -> None:
    async def all_of_it() -> None:
        if _unfinished:
            await asyncio.wait(set(_unfinished), timeout=LAST_WORDS)

    wait_for(all_of_it())
