"""Workers that are processes of this machine, and the program that they run.

It reads pickled blocks of items from stdin, and answers each with their lines.
"""

from __future__ import annotations

import asyncio
import os
import pickle
import signal
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from queue import SimpleQueue
from threading import Thread
from typing import Any, BinaryIO

from ludus.environment.worker_processes import worker_command, worker_env
from ludus.errors import WorkersFailed, describe_in_one_line
from ludus.rollout.workers import BlockReply, EpisodePlay, Worker, WorkerSource, WorkItem, run_block


def available_cores() -> int:
    """The number of cores that worker processes may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


LENGTH_BYTES = 4
"""Length of the number of bytes before each reply."""
EXIT_TIMEOUT_S = 5.0
"""Seconds to close the environments, once the parent has closed the pipe or is gone."""
_READ_BUFFER_BYTES = 1 << 20


class ProcessWorker(Worker):
    """One process. Blocks and replies go through its pipes."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        super().__init__()
        self.process = process

    def send(self, items: Sequence[WorkItem]) -> None:
        assert self.process.stdin is not None
        # Replies that were still in its pipe send further blocks to a worker that has ended.
        if not self.process.stdin.is_closing():
            self.process.stdin.write(pickle.dumps(items))

    async def read_reply(self) -> BlockReply:
        reply: BlockReply = await self.read_object()
        return reply

    async def read_object(self) -> Any:
        """The next pickled object; raises `EOFError` if the process has ended."""
        assert self.process.stdout is not None
        header = await self.process.stdout.readexactly(LENGTH_BYTES)
        length = int.from_bytes(header, "little")
        return pickle.loads(await self.process.stdout.readexactly(length))

    async def exit_status(self) -> str:
        try:
            code = await self.process.wait()
        except asyncio.CancelledError:
            await self._kill_and_wait()
            raise
        if code >= 0:
            return f"exit status {code}"
        with suppress(ValueError):
            return signal.Signals(-code).name
        return f"signal {-code}"

    def kill(self) -> None:
        with suppress(ProcessLookupError):
            self.process.kill()

    async def end(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        try:
            if not self.blocks:
                with suppress(TimeoutError):
                    async with asyncio.timeout(EXIT_TIMEOUT_S + 1.0):
                        await self.process.wait()
        finally:
            await self._kill_and_wait()

    async def _kill_and_wait(self) -> None:
        self.kill()
        if self.reader is not None:
            await self.reader
        await self.process.wait()


class ProcessWorkers(WorkerSource):
    """Starts processes that play."""

    advice = "Set `workers` to 1 to play in this process."

    def __init__(self, work: EpisodePlay) -> None:
        self._setup = pickle.dumps(work)

    async def start_worker(self) -> ProcessWorker:
        process = await asyncio.create_subprocess_exec(
            *worker_command("ludus.rollout.process_worker"),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            env=worker_env(),
            limit=_READ_BUFFER_BYTES,
            # Ctrl-C is for this process alone, which ends the workers.
            start_new_session=True,
        )
        worker = ProcessWorker(process)
        try:
            assert process.stdin is not None
            process.stdin.write(pickle.dumps(sys.path) + self._setup)
            problem = await worker.read_object()
        except (EOFError, OSError):
            problem = f"One ended with {await worker.exit_status()}."
        except BaseException:
            await worker.end()
            raise
        if problem is not None:
            await worker.end()
            raise WorkersFailed(f"The worker processes cannot be started: {problem} {self.advice}")
        return worker


def run_process_worker() -> None:
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
        work: EpisodePlay = pickle.load(requests)
        await work.open()
    except Exception as error:
        _send(replies, describe_in_one_line(error))
        return
    _send(replies, None)
    queue: SimpleQueue[Sequence[WorkItem] | None] = SimpleQueue()

    def read_requests() -> None:
        """Read in a thread, which notices the end of the parent even if an episode hangs."""
        with suppress(EOFError, pickle.UnpicklingError, OSError):
            while True:
                queue.put(pickle.load(requests))
        queue.put(None)
        time.sleep(EXIT_TIMEOUT_S)
        os._exit(1)

    Thread(target=read_requests, daemon=True).start()
    # Nothing else runs on the event loop between two blocks, so that waiting may block it.
    while (block := queue.get()) is not None:
        _send(replies, await run_block(work, block))
    await work.close()


def _send(replies: BinaryIO, reply: object) -> None:
    data = pickle.dumps(reply)
    replies.write(len(data).to_bytes(LENGTH_BYTES, "little") + data)
    replies.flush()


if __name__ == "__main__":
    run_process_worker()
