"""The program of a worker process: see `process_worker`.

It reads pickled blocks of items from stdin, and answers each with their lines.
"""

from __future__ import annotations

import asyncio
import os
import pickle
import sys
import time
from contextlib import suppress
from queue import SimpleQueue
from threading import Thread
from typing import Any, BinaryIO

from ludus.errors import describe_in_one_line
from ludus.rollout.workers import BlockWork, run_block

LENGTH_BYTES = 4
"""Length of the number of bytes before each reply."""
EXIT_TIMEOUT_S = 5.0
"""Seconds to close the environments, once the parent has closed the pipe or is gone."""


def run_worker() -> None:
    """Run the worker process, until its parent closes the pipe or is gone."""
    requests, replies = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    # An environment may print or read: neither must get into the pipes.
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)
    sys.path[:] = pickle.load(requests)
    # The parent may be gone before it has read a reply.
    with suppress(BrokenPipeError, EOFError):
        asyncio.run(_serve(requests, replies))


async def _serve(requests: BinaryIO, replies: BinaryIO) -> None:
    try:
        work: BlockWork = pickle.load(requests)
        await work.open()
    except Exception as error:
        _send(replies, describe_in_one_line(error))
        return
    _send(replies, None)
    queue: SimpleQueue[Any] = SimpleQueue()
    Thread(target=_read_requests, args=(requests, queue), daemon=True).start()
    # Nothing else runs on the event loop between two blocks, so that waiting may block it.
    while (block := queue.get()) is not None:
        _send(replies, await run_block(work, block))
    await work.close()


def _read_requests(requests: BinaryIO, queue: SimpleQueue[Any]) -> None:
    """Read requests in a thread, which notices the end of the parent even if an episode hangs."""
    with suppress(EOFError, pickle.UnpicklingError, OSError):
        while True:
            queue.put(pickle.load(requests))
    queue.put(None)
    time.sleep(EXIT_TIMEOUT_S)
    os._exit(1)


def _send(replies: BinaryIO, reply: Any) -> None:
    data = pickle.dumps(reply)
    replies.write(len(data).to_bytes(LENGTH_BYTES, "little") + data)
    replies.flush()


if __name__ == "__main__":
    run_worker()
