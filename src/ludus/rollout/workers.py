"""Workers that play episodes in parallel, on all cores or on a cluster.

`process_worker` starts processes of this machine, `ray_cluster` actors on a cluster. Items come in
blocks, and each becomes the line of an episode.
"""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple

from ludus.agents.agent import Agent
from ludus.client.endpoint import connect
from ludus.data.episode import Episode
from ludus.data.episode_reader import episode_from_line
from ludus.environment.faults import AuthorFault, capture_faults, report_fault
from ludus.errors import LudusError, WorkerDied, WorkersFailed
from ludus.rollout.episode_loop import EpisodeLimits, run_attempt
from ludus.rollout.plan import Assignment
from ludus.rollout.session_pool import SessionPool

WorkItem = tuple[Assignment, int]
"""An episode, and the number of the attempt."""


class BlockReply(NamedTuple):
    """The results of a block."""

    lines: list[bytes | LudusError]
    """In the order of the items."""
    faults: list[AuthorFault]
    """What the environments raised meanwhile."""
    seconds: float


async def run_block(play: EpisodePlay, items: Sequence[WorkItem]) -> BlockReply:
    """Play episodes one after the other: they are CPU-bound, so overlapping gains nothing."""
    started_at = time.monotonic()
    faults = list[AuthorFault]()
    lines: list[bytes | LudusError] = []
    with capture_faults(faults.append):
        for item in items:
            try:
                lines.append(await play.run(*item))
            except LudusError as error:
                lines.append(error)
    return BlockReply(lines, faults, time.monotonic() - started_at)


@dataclass(slots=True, kw_only=True)
class EpisodePlay:
    """Plays attempts at episodes. It is pickled, so `open` builds whatever cannot be pickled."""

    agent: Agent
    specs: Mapping[str, str]
    """The environments' specs by the names that episodes record."""
    limits: EpisodeLimits
    system_prompt: str | None
    _pools: dict[str, SessionPool] = field(default_factory=dict)

    async def open(self) -> None:
        self._pools = {name: SessionPool(connect(spec)) for name, spec in self.specs.items()}

    async def run(self, assignment: Assignment, attempt: int) -> bytes:
        """Play an attempt; returns the episode's line in the journal."""
        episode = await run_attempt(
            assignment,
            self.agent,
            self._pools[assignment.environment],
            limits=self.limits,
            system_prompt=self.system_prompt,
            attempt=attempt,
        )
        return episode.to_line()

    async def close(self) -> None:
        for pool in self._pools.values():
            await pool.close_idle()


BLOCKS_PER_WORKER = 2
"""The second one waits, so that a worker does not wait for this process."""
MAX_IN_PROGRESS = 20_000
"""Episodes that are sent at once, over all workers: each takes about 20 KB of this process."""
MAX_DEATHS_PER_ITEM = 2
"""Ends of workers on blocks with an item after which the item has a fault."""
MAX_DEATHS_IN_A_ROW = 10
"""So many ends of workers without an episode between them end the run."""


@dataclass(slots=True, eq=False)
class WorkerRequest:
    """An item that a worker has to work on, and the episode that it becomes."""

    item: WorkItem
    reply: asyncio.Future[Episode]
    deaths: int = 0
    """How many workers ended on the block that it was in. After the first it is sent alone."""

    def fail(self, error: LudusError) -> None:
        if not self.reply.done():
            self.reply.set_exception(error)


class Worker(ABC):
    """One worker. It answers blocks in the order in which they were sent."""

    def __init__(self) -> None:
        self.blocks: deque[list[WorkerRequest]] = deque()
        """Blocks without a reply yet; it works on the first of them."""
        self.reader: asyncio.Task[None] | None = None

    @abstractmethod
    def send(self, items: Sequence[WorkItem]) -> None:
        """Send a block. It is not lost if the worker has ended: it is in `blocks`."""

    @abstractmethod
    async def read_reply(self) -> BlockReply:
        """The next reply; raises `EOFError` or `OSError` if the worker has ended."""

    @abstractmethod
    async def exit_status(self) -> str:
        """Why it has ended, as the end of a sentence: "SIGKILL"."""

    async def is_node_lost(self) -> bool:
        """Whether it ended because of its machine and not because of an episode."""
        return False

    @abstractmethod
    def kill(self) -> None: ...

    @abstractmethod
    async def end(self) -> None:
        """Let it close its environments if it is idle, and wait for its end."""


class WorkerSource(ABC):
    """Starts workers."""

    advice: ClassVar[str]
    """What a user can do if workers fail."""
    block_s: float = 0.02
    """Seconds of work that are sent to a worker at once: less would cost more than it takes."""
    max_block_size: int = 64
    start_timeout_s: float | None = None
    """Seconds that the first worker may take to start; the others join the run when they can."""

    @abstractmethod
    async def start_worker(self) -> Worker:
        """Start a worker; returns when it can work, or raises `WorkersFailed`."""


class EpisodeWorkers:
    """Workers that play attempts at episodes.

    Items are sent in blocks. A worker that ends is replaced, and the items of its block are sent
    again, each alone, to find the item that ends workers; it gets a fault. If the machine was lost,
    no item is suspected.
    """

    def __init__(
        self,
        source: WorkerSource,
        count: int,
        warn: Callable[[str], None] = lambda message: None,
    ) -> None:
        self._source = source
        self._count = count
        self._warn = warn
        self.workers: list[Worker] = []
        self._waiting: deque[WorkerRequest] = deque()
        self._starts: set[asyncio.Task[None]] = set()
        self._reported: set[str] = set()
        self._deaths_in_a_row = 0
        self._failure: str | None = None
        self._block_size = 1
        self._will_dispatch = False
        self._closing = False

    @property
    def capacity(self) -> int:
        """Number of episodes that should be in progress: more would only wait."""
        return self._count * BLOCKS_PER_WORKER * self._block_size

    async def start(self) -> None:
        """Start the workers; returns when the first can work, or raises `WorkersFailed`."""
        self._starts = {asyncio.create_task(self._add_worker()) for _ in range(self._count)}
        try:
            ended, others = await asyncio.wait(
                self._starts,
                timeout=self._source.start_timeout_s,
                return_when=asyncio.FIRST_COMPLETED,
            )
            if not ended:
                raise WorkersFailed(f"No worker has started in time. {self._source.advice}")
            for task in ended:
                task.result()
        except BaseException:
            await self.close()
            raise
        self._starts.clear()
        for task in others:
            self._track_start(task)

    async def run(self, item: WorkItem) -> Episode:
        """Let a worker work on an item. Raises `WorkerDied` if workers ended on it."""
        if self._failure is not None:
            raise WorkersFailed(self._failure)
        loop = asyncio.get_running_loop()
        request = WorkerRequest(item, loop.create_future())
        self._waiting.append(request)
        if not self._will_dispatch:
            # Later, when the other episodes that can start now have come here, too.
            self._will_dispatch = True
            loop.call_soon(self._dispatch)
        return await request.reply

    async def close(self) -> None:
        """End the workers. May be called twice."""
        self._closing = True
        for task in self._starts:
            task.cancel()
        await asyncio.gather(*self._starts, return_exceptions=True)
        await asyncio.gather(*(worker.end() for worker in self.workers))
        self.workers.clear()

    def _dispatch(self) -> None:
        """Send waiting requests to the workers that have the fewest blocks."""
        self._will_dispatch = False
        while self._waiting and self.workers:
            worker = min(self.workers, key=lambda worker: len(worker.blocks))
            if len(worker.blocks) >= BLOCKS_PER_WORKER:
                return
            block = [self._waiting.popleft()]
            while self._waiting and len(block) < self._block_size and not block[0].deaths:
                if self._waiting[0].deaths:
                    break
                block.append(self._waiting.popleft())
            worker.blocks.append(block)
            worker.send([request.item for request in block])

    async def _add_worker(self) -> None:
        worker = await self._source.start_worker()
        self.workers.append(worker)
        worker.reader = asyncio.create_task(self._read_replies(worker))
        self._dispatch()

    async def _read_replies(self, worker: Worker) -> None:
        with suppress(EOFError, OSError):
            while True:
                reply = await worker.read_reply()
                for fault in reply.faults:
                    report_fault(fault)
                block = worker.blocks.popleft()
                self._deaths_in_a_row = 0
                size = int(self._source.block_s * len(block) / max(reply.seconds, 1e-6))
                share = MAX_IN_PROGRESS // (self._count * BLOCKS_PER_WORKER)
                self._block_size = max(1, min(self._source.max_block_size, share, size))
                self._dispatch()
                for request, line in zip(block, reply.lines, strict=True):
                    if isinstance(line, LudusError):
                        request.fail(line)
                    elif not request.reply.done():
                        request.reply.set_result(episode_from_line(line))
        if not self._closing:
            self.workers.remove(worker)
            self._track_start(asyncio.create_task(self._replace(worker)))

    def _track_start(self, task: asyncio.Task[None]) -> None:
        """Keep a start in the background; if it fails, the other workers go on."""

        def on_started(task: asyncio.Task[None]) -> None:
            self._starts.discard(task)
            if task.cancelled() or (error := task.exception()) is None:
                return
            if not isinstance(error, WorkersFailed):
                self._fail_all(f"{type(error).__name__}: {error}")
            elif self.workers or self._starts:
                self._count = max(1, self._count - 1)
                self._warn(str(error))
            else:
                self._fail_all(str(error))

        self._starts.add(task)
        task.add_done_callback(on_started)

    async def _replace(self, worker: Worker) -> None:
        """Send the blocks of a worker that has ended again, and start another worker."""
        status = await worker.exit_status()
        if status not in self._reported:
            self._reported.add(status)
            self._warn(f"A worker ended with {status}. What it was playing is played again.")
        if not await worker.is_node_lost():
            self._deaths_in_a_row += 1
            for request in worker.blocks[0] if worker.blocks else ():
                request.deaths += 1
        for request in (request for block in worker.blocks for request in block):
            if request.deaths >= MAX_DEATHS_PER_ITEM:
                request.fail(WorkerDied(f"The worker that played it ended with {status}."))
            else:
                self._waiting.appendleft(request)
        if self._deaths_in_a_row >= max(MAX_DEATHS_IN_A_ROW, 2 * self._count):
            ended = f"{self._deaths_in_a_row} workers in a row ended, the last with {status}"
            self._fail_all(f"{ended}. {self._source.advice}")
        self._dispatch()
        if self._failure is None:
            await self._add_worker()

    def _fail_all(self, failure: str) -> None:
        self._failure = failure
        for worker in self.workers:
            self._waiting.extend(request for block in worker.blocks for request in block)
            worker.kill()
        while self._waiting:
            self._waiting.popleft().fail(WorkersFailed(failure))
