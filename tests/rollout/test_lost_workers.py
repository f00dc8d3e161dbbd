"""What happens to the episodes of workers that are lost, with fake workers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from data.sample_episodes import attempt

from ludus.errors import WorkerDied, WorkersFailed
from ludus.rollout.plan import Assignment
from ludus.rollout.workers import BlockReply, EpisodeWorkers, Worker, WorkerSource, WorkItem

EPISODE = Assignment.of("world")
EndsOn = Callable[["FakeWorker", Sequence[int]], bool]
"""Whether a worker ends on a block."""


class FakeWorker(Worker):
    def __init__(self, number: int, ends_on: EndsOn, *, node_lost: bool) -> None:
        super().__init__()
        self.number = number
        self.played: list[int] = []
        self._ends_on, self._node_lost = ends_on, node_lost
        self._blocks: asyncio.Queue[Sequence[int] | None] = asyncio.Queue()

    def send(self, items: Sequence[WorkItem]) -> None:
        self._blocks.put_nowait([number for _, number in items])

    async def read_reply(self) -> BlockReply:
        items = await self._blocks.get()
        if items is None or self._ends_on(self, items):
            raise EOFError
        self.played += items
        lines = [attempt(item).to_line() for item in items]
        return BlockReply(list(lines), [], 0.001 * len(items))

    async def exit_status(self) -> str:
        return "a bang"

    async def is_node_lost(self) -> bool:
        return self._node_lost

    def kill(self) -> None:
        self._blocks.put_nowait(None)

    async def end(self) -> None:
        self.kill()
        if self.reader is not None:
            await self.reader


class FakeWorkers(WorkerSource):
    advice = "Buy another machine."

    def __init__(self, ends_on: EndsOn, *, node_lost: bool = False, limit: int = 1000) -> None:
        self.ends_on, self.node_lost, self.limit = ends_on, node_lost, limit
        self.started: list[FakeWorker] = []

    async def start_worker(self) -> Worker:
        if len(self.started) == self.limit:
            raise WorkersFailed("No machine is left.")
        worker = FakeWorker(len(self.started), self.ends_on, node_lost=self.node_lost)
        self.started.append(worker)
        return worker


async def play(source: FakeWorkers, count: int = 3, n: int = 300) -> list[Any]:
    workers = EpisodeWorkers(source, count)
    await workers.start()
    try:
        return await asyncio.gather(
            *(workers.run((EPISODE, item)) for item in range(n)), return_exceptions=True
        )
    finally:
        await workers.close()


def indices(results: list[Any]) -> list[int]:
    """The indices in the plan of the episodes that came back."""
    return [int(each.episode_id[-6:]) for each in results if not isinstance(each, Exception)]


async def test_a_lost_nodes_blocks_are_played_once_by_others() -> None:
    source = FakeWorkers(
        lambda worker, items: worker.number == 0 and len(worker.played) > 5,
        node_lost=True,
        limit=3,  # None takes its place.
    )
    results = await play(source)
    assert indices(results) == list(range(300))
    played = [item for worker in source.started for item in worker.played]
    assert sorted(played) == list(range(300))


async def test_no_number_of_lost_nodes_is_blamed_on_an_episode() -> None:
    source = FakeWorkers(lambda worker, items: worker.number < 30 and 7 in items, node_lost=True)
    results = await play(source, n=20)
    assert indices(results) == list(range(20))
    assert len(source.started) > 30


async def test_an_item_that_ends_its_workers_is_found() -> None:
    source = FakeWorkers(lambda worker, items: 7 in items)
    results = await play(source, n=100)
    assert isinstance(results[7], WorkerDied) and "a bang" in str(results[7])
    assert [type(each) for each in results].count(WorkerDied) == 1


async def test_the_run_fails_once_no_worker_is_left() -> None:
    source = FakeWorkers(lambda worker, items: True, node_lost=True, limit=2)
    results = await play(source, count=2, n=10)
    assert all(isinstance(each, WorkersFailed) for each in results)


async def test_a_run_starts_with_the_workers_that_are_there() -> None:
    class Waiting(FakeWorkers):
        async def start_worker(self) -> Worker:
            if len(self.started) == 1:
                await asyncio.Event().wait()
            return await super().start_worker()

    results = await play(Waiting(lambda worker, items: False), n=20)
    assert len(indices(results)) == 20


async def test_a_run_fails_where_no_worker_starts_in_time() -> None:
    class Waiting(FakeWorkers):
        start_timeout_s = 0.05

        async def start_worker(self) -> Worker:
            await asyncio.Event().wait()
            raise AssertionError

    with pytest.raises(WorkersFailed, match="in time"):
        await play(Waiting(lambda worker, items: False))


async def test_a_first_start_that_fails_is_an_error() -> None:
    with pytest.raises(WorkersFailed, match="No machine"):
        await play(FakeWorkers(lambda worker, items: False, limit=0))


async def test_a_later_start_that_fails_is_a_warning() -> None:
    asked: list[int] = []

    class Unsteady(FakeWorkers):
        async def start_worker(self) -> Worker:
            asked.append(len(asked))
            await asyncio.sleep(0.02 * asked[-1])
            return await super().start_worker()

    warnings: asyncio.Queue[str] = asyncio.Queue()
    source = Unsteady(lambda worker, items: False, limit=1)
    workers = EpisodeWorkers(source, 2, warnings.put_nowait)
    await workers.start()
    results = await asyncio.gather(*(workers.run((EPISODE, item)) for item in range(20)))
    assert indices(results) == list(range(20))
    assert await warnings.get() == "No machine is left."
    await workers.close()


async def test_many_workers_get_small_blocks() -> None:
    source = FakeWorkers(lambda worker, items: False, limit=5000)
    workers = EpisodeWorkers(source, 5000)
    await workers.start()
    await asyncio.gather(*(workers.run((EPISODE, item)) for item in range(20)))
    assert workers.capacity == 20_000
    await workers.close()
