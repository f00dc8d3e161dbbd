"""The work of workers on other cores and nodes: items come in blocks, and each becomes a line."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ludus.agents.agent import Agent
from ludus.client.endpoint import connect
from ludus.environment.fault_log import FaultRecorder, LoggedFault, capture_faults
from ludus.errors import LudusError
from ludus.rollout.loop import EpisodeLimits, run_attempt
from ludus.rollout.session_pool import SessionPool


class BlockWork(ABC):
    """What a worker does. It is pickled, so that `open` has to build what cannot be."""

    async def open(self) -> None:  # noqa: B027
        """Prepare for the first item; whatever it raises is shown to the user."""

    @abstractmethod
    async def run(self, item: Any) -> bytes:
        """Work on an item; returns the line of an episode."""

    async def close(self) -> None:  # noqa: B027
        """Release what `open` and `run` have built."""


class BlockReply(NamedTuple):
    """The results of a block."""

    lines: list[bytes | LudusError]
    """In the order of the items."""
    faults: list[LoggedFault]
    """What the environments raised meanwhile."""
    seconds: float


async def run_block(work: BlockWork, items: Sequence[Any]) -> BlockReply:
    """Work on the items one after the other: they compute, and nothing is gained by overlapping."""
    started_at = time.monotonic()
    faults = FaultRecorder()
    lines: list[bytes | LudusError] = []
    with capture_faults(faults):
        for item in items:
            try:
                lines.append(await work.run(item))
            except LudusError as error:
                lines.append(error)
    return BlockReply(lines, faults.take(), time.monotonic() - started_at)


@dataclass(slots=True, kw_only=True)
class EpisodePlay(BlockWork):
    """Plays attempts at episodes; an item is an assignment and the number of the attempt."""

    agent: Agent
    specs: Mapping[str, str]
    """The environments' specs by the names that episodes record."""
    limits: EpisodeLimits
    system_prompt: str | None
    _pools: dict[str, SessionPool] = field(default_factory=dict)

    async def open(self) -> None:
        self._pools = {name: SessionPool(connect(spec)) for name, spec in self.specs.items()}

    async def run(self, item: Any) -> bytes:
        assignment, attempt = item
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
            await pool.close()
