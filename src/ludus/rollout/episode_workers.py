"""Worker processes that play episodes, so that environments which compute use all cores."""

from __future__ import annotations

import asyncio
import pickle
import signal
import sys
from collections import deque
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from ludus.data.episode import Episode
from ludus.environment.fault_log import log_recorded_fault
from ludus.environment.worker_processes import worker_command, worker_env
from ludus.errors import WorkerDied, WorkersFailed
from ludus.rollout.plan import Assignment
from ludus.rollout.worker_program import EXIT_TIMEOUT_S, LENGTH_BYTES

BATCH_S = 0.02
"""Seconds of playing that are sent to a worker at once: less would cost more than it takes."""
MAX_BATCH_SIZE = 64
BATCHES_PER_WORKER = 2
"""The second one waits, so that a worker does not wait for this process."""
MAX_DEATHS_IN_A_ROW = 10
"""So many ends of workers without an episode between them end the run."""
_READ_BUFFER_BYTES = 1 << 20
_ADVICE = "Set `workers` to 1 to play in this process."


@dataclass(slots=True, eq=False)
class _Request:
    assignment: Assignment
    attempt: int
    reply: asyncio.Future[Episode]
    is_suspect: bool = False
    """Whether a worker ended on the batch that it was in; it is played alone then."""

    def fail(self, error: WorkerDied) -> None:
        if not self.reply.done():
            self.reply.set_exception(error)


@dataclass(slots=True, eq=False)
class _Worker:
    process: asyncio.subprocess.Process
    batches: deque[list[_Request]] = field(default_factory=deque)
    """Batches without a reply yet; it plays the first of them."""
    reader: asyncio.Task[None] | None = None

    def send(self, batch: list[_Request]) -> None:
        self.batches.append(batch)
        assert self.process.stdin is not None
        episodes = [(request.assignment, request.attempt) for request in batch]
        self.process.stdin.write(pickle.dumps(episodes))

    async def read_reply(self) -> Any:
        """The next reply; raises `EOFError` where the worker has ended."""
        assert self.process.stdout is not None
        header = await self.process.stdout.readexactly(LENGTH_BYTES)
        length = int.from_bytes(header, "little")
        return pickle.loads(await self.process.stdout.readexactly(length))

    async def exit_status(self) -> str:
        code = await self.process.wait()
        if code >= 0:
            return f"exit status {code}"
        with suppress(ValueError):
            return signal.Signals(-code).name
        return f"signal {-code}"

    def kill(self) -> None:
        with suppress(ProcessLookupError):
            self.process.kill()

    async def end(self) -> None:
        """Close the pipe, upon which it ends; kill it if it still plays, or does not end."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        if not self.batches:
            with suppress(TimeoutError):
                async with asyncio.timeout(EXIT_TIMEOUT_S + 1.0):
                    await self.process.wait()
        self.kill()
        if self.reader is not None:
            await self.reader
        await self.process.wait()


class EpisodeWorkers:
    """Worker processes that play attempts at episodes.

    Episodes are sent in batches. A worker that ends is replaced, and the episodes of its batch are
    played again, each alone: so the one that ends a worker is found, and has a fault.

    Args:
        setup: what `worker_program` needs, pickled.
    """

    def __init__(self, setup: bytes, count: int) -> None:
        self._setup = setup
        self._count = count
        self._workers: list[_Worker] = []
        self._waiting: deque[_Request] = deque()
        self._replacements: set[asyncio.Task[None]] = set()
        self._deaths_in_a_row = 0
        self._failure: str | None = None
        self._batch_size = 1
        self._will_dispatch = False
        self._closing = False

    @property
    def capacity(self) -> int:
        """Number of episodes that should be in progress: more would only wait."""
        return self._count * BATCHES_PER_WORKER * self._batch_size

    @property
    def process_ids(self) -> list[int]:
        return [worker.process.pid for worker in self._workers]

    async def start(self) -> None:
        """Start the workers; returns when all can play, or raises `WorkersFailed`."""
        starts = (self._add_worker() for _ in range(self._count))
        for problem in await asyncio.gather(*starts, return_exceptions=True):
            if problem is not None:
                await self.close()
                raise problem

    async def play(self, assignment: Assignment, attempt: int) -> Episode:
        """Play an attempt at an episode. Raises `WorkerDied` where a worker ended meanwhile."""
        if self._failure is not None:
            raise WorkersFailed(self._failure)
        loop = asyncio.get_running_loop()
        request = _Request(assignment, attempt, loop.create_future())
        self._waiting.append(request)
        if not self._will_dispatch:
            # Later, when the other episodes that can start now have come here, too.
            self._will_dispatch = True
            loop.call_soon(self._dispatch)
        return await request.reply

    async def close(self) -> None:
        """End the workers. May be called twice."""
        self._closing = True
        for task in self._replacements:
            task.cancel()
        await asyncio.gather(*self._replacements, return_exceptions=True)
        await asyncio.gather(*(worker.end() for worker in self._workers))
        self._workers.clear()

    def _dispatch(self) -> None:
        """Send waiting requests to the workers that have the fewest batches."""
        self._will_dispatch = False
        while self._waiting and self._workers:
            worker = min(self._workers, key=lambda worker: len(worker.batches))
            if len(worker.batches) >= BATCHES_PER_WORKER:
                return
            batch = [self._waiting.popleft()]
            while self._waiting and len(batch) < self._batch_size and not batch[0].is_suspect:
                if self._waiting[0].is_suspect:
                    break
                batch.append(self._waiting.popleft())
            worker.send(batch)

    async def _add_worker(self) -> None:
        """Start a worker and wait until it can play."""
        process = await asyncio.create_subprocess_exec(
            *worker_command("ludus.rollout.worker_program"),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            env=worker_env(),
            limit=_READ_BUFFER_BYTES,
            # Ctrl-C is for this process alone, which ends the workers.
            start_new_session=True,
        )
        worker = _Worker(process)
        try:
            assert process.stdin is not None
            process.stdin.write(pickle.dumps(sys.path) + self._setup)
            problem = await worker.read_reply()
        except (EOFError, OSError):
            problem = f"One ended with {await worker.exit_status()}."
        except BaseException:
            await worker.end()
            raise
        if problem is not None:
            await worker.end()
            raise WorkersFailed(f"The worker processes cannot be started: {problem} {_ADVICE}")
        self._workers.append(worker)
        worker.reader = asyncio.create_task(self._read_replies(worker))
        self._dispatch()

    async def _read_replies(self, worker: _Worker) -> None:
        with suppress(EOFError, OSError):
            while True:
                lines, faults, seconds = await worker.read_reply()
                for fault in faults:
                    log_recorded_fault(fault)
                batch = worker.batches.popleft()
                self._deaths_in_a_row = 0
                self._batch_size = _next_batch_size(seconds / len(batch))
                self._dispatch()
                for request, line in zip(batch, lines, strict=True):
                    if not request.reply.done():
                        request.reply.set_result(Episode.from_line(line))
        if not self._closing:
            self._workers.remove(worker)
            task = asyncio.create_task(self._replace(worker))
            self._replacements.add(task)
            task.add_done_callback(self._replacements.discard)

    async def _replace(self, worker: _Worker) -> None:
        """Play the batches of a worker that has ended again, and start another worker."""
        self._deaths_in_a_row += 1
        status = await worker.exit_status()
        if worker.batches and len(worker.batches[0]) == 1:
            (request,) = worker.batches.popleft()
            request.fail(WorkerDied(f"The worker process that played it ended with {status}."))
        elif worker.batches:
            for request in worker.batches[0]:
                request.is_suspect = True
        self._waiting.extendleft(request for batch in worker.batches for request in batch)
        if self._deaths_in_a_row >= MAX_DEATHS_IN_A_ROW:
            ended = f"{MAX_DEATHS_IN_A_ROW} worker processes in a row ended, the last with {status}"
            self._fail_all(f"{ended}. {_ADVICE}")
        if self._failure is None:
            try:
                await self._add_worker()
            except WorkersFailed as error:
                self._fail_all(str(error))

    def _fail_all(self, failure: str) -> None:
        self._failure = failure
        for worker in self._workers:
            self._waiting.extend(request for batch in worker.batches for request in batch)
            worker.kill()
        while self._waiting:
            self._waiting.popleft().fail(WorkersFailed(failure))


def _next_batch_size(mean_s: float) -> int:
    return max(1, min(MAX_BATCH_SIZE, int(BATCH_S / max(mean_s, 1e-6))))
