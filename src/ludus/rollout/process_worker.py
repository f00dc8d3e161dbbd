"""Workers that are processes of this machine; `worker_program` is what they run."""

from __future__ import annotations

import asyncio
import os
import pickle
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from ludus.environment.worker_processes import worker_command, worker_env
from ludus.errors import WorkersFailed
from ludus.rollout.worker_program import EXIT_TIMEOUT_S, LENGTH_BYTES
from ludus.rollout.workers import BlockReply, BlockWork, Worker, WorkerSource


def available_cores() -> int:
    """The cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


_READ_BUFFER_BYTES = 1 << 20


class ProcessWorker(Worker):
    """One process. Blocks and replies go through its pipes."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        super().__init__()
        self.process = process

    def send(self, items: Sequence[Any]) -> None:
        assert self.process.stdin is not None
        # Replies that were still in its pipe send further blocks to a worker that has ended.
        if not self.process.stdin.is_closing():
            self.process.stdin.write(pickle.dumps(items))

    async def read_reply(self) -> BlockReply:
        reply: BlockReply = await self.read_object()
        return reply

    async def read_object(self) -> Any:
        """The next pickled object; raises `EOFError` where the process has ended."""
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
    """Starts processes for some work."""

    advice = "Set `workers` to 1 to play in this process."

    def __init__(self, work: BlockWork) -> None:
        self._setup = pickle.dumps(work)

    async def start_worker(self) -> ProcessWorker:
        process = await asyncio.create_subprocess_exec(
            *worker_command("ludus.rollout.worker_program"),
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
