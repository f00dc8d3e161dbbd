"""The program of a worker process, which plays episodes for `episode_workers`.

It reads pickled batches of episodes from stdin, and answers each with their lines. Episodes are
played one after the other: they compute, so that nothing is gained by overlapping them.
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

from ludus.client.endpoint import connect
from ludus.environment.fault_log import FaultRecorder, capture_faults
from ludus.errors import describe_in_one_line
from ludus.rollout.attempts import EpisodeRunner
from ludus.rollout.session_pool import SessionPool

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
        agent, specs, limits, system_prompt = pickle.load(requests)
        pools = {name: SessionPool(connect(spec)) for name, spec in specs.items()}
    except Exception as error:
        _send(replies, describe_in_one_line(error))
        return
    _send(replies, None)
    runner = EpisodeRunner(agent=agent, limits=limits, system_prompt=system_prompt)
    queue: SimpleQueue[Any] = SimpleQueue()
    Thread(target=_read_requests, args=(requests, queue), daemon=True).start()
    faults = FaultRecorder()
    with capture_faults(faults):
        # Nothing else runs on the event loop between two episodes, so that waiting may block it.
        while (batch := queue.get()) is not None:
            started_at = time.monotonic()
            lines = []
            for assignment, attempt in batch:
                pool = pools[assignment.environment]
                episode = await runner.run_attempt(assignment, pool, attempt)
                lines.append(episode.to_line())
            runner.statuses.clear()
            _send(replies, (lines, faults.take(), time.monotonic() - started_at))
    for pool in pools.values():
        await pool.close()


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
