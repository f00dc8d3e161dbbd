"""Workers, wherever they run: what `EpisodeWorkers` needs of them, and how they start."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from ludus.data.episode import Episode
from ludus.errors import LudusError, WorkersFailed
from ludus.rollout.block_work import BlockReply


@dataclass(slots=True, eq=False)
class WorkerRequest:
    """An item that a worker has to work on, and the episode that it becomes."""

    item: Any
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
    def send(self, items: Sequence[Any]) -> None:
        """Send a block."""

    @abstractmethod
    async def read_reply(self) -> BlockReply:
        """The next reply; raises `EOFError` or `OSError` where the worker has ended."""

    @abstractmethod
    async def exit_status(self) -> str:
        """Why it has ended, as the end of a sentence: "SIGKILL"."""

    async def is_node_lost(self) -> bool:
        """Whether it ended because of its machine, so that no episode is to blame."""
        return False

    @abstractmethod
    def kill(self) -> None: ...

    @abstractmethod
    async def end(self) -> None:
        """Let it close its environments if it is idle, and wait for its end."""


class WorkerSource(ABC):
    """Starts workers."""

    advice: ClassVar[str]
    """What a user can do where workers fail."""
    block_s: float = 0.02
    """Seconds of work that are sent to a worker at once: less would cost more than it takes."""
    max_block_size: int = 64
    start_timeout_s: float | None = None
    """Seconds that the first worker may take to start."""
    join_timeout_s: float | None = None
    """Seconds after the first worker in which the others may start; later ones join the run."""

    @abstractmethod
    async def start_worker(self) -> Worker:
        """Start a worker; returns when it can work, or raises `WorkersFailed`."""


async def wait_for_starts(
    starts: Sequence[asyncio.Task[None]],
    *,
    start_timeout_s: float | None,
    join_timeout_s: float | None,
    advice: str,
) -> set[asyncio.Task[None]]:
    """Wait until one of the workers has started, and then for the others; return the late ones.

    Raises what a start raised, or `WorkersFailed` where none ends in time; then all are cancelled.
    """
    try:
        first, _ = await asyncio.wait(
            starts, timeout=start_timeout_s, return_when=asyncio.FIRST_COMPLETED
        )
        if not first:
            raise WorkersFailed(f"No worker has started in time. {advice}")
        done, late = await asyncio.wait(
            starts, timeout=join_timeout_s, return_when=asyncio.FIRST_EXCEPTION
        )
        for task in done:
            task.result()
    except BaseException:
        for task in starts:
            task.cancel()
        await asyncio.gather(*starts, return_exceptions=True)
        raise
    return late
