"""The pool of sessions: who is full sets the number, and who is gone is waited for."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from world import Counter, serving, until

from ludus import connect
from ludus.client.endpoint import Endpoint
from ludus.client.session import Session
from ludus.errors import CapacityReached, ConnectFailed, SessionError
from ludus.protocol.types import StepResult
from ludus.rollout import session_pool
from ludus.rollout.session_pool import SessionPool


class FakeEndpoint(Endpoint):
    """Takes so many sessions, and is away when told so."""

    spec = "fake"

    def __init__(self, capacity: int = 100) -> None:
        self.capacity = capacity
        self.open = 0
        self.most = 0
        self.away = False
        self.refused = 0

    def session(self) -> Session:
        return FakeSession(self)


class FakeSession(Session):
    def __init__(self, endpoint: FakeEndpoint) -> None:
        self._endpoint = endpoint
        self._taken = False

    async def open(self) -> None:
        await asyncio.sleep(0)
        if self._endpoint.away:
            raise ConnectFailed("Cannot connect.")
        if self._endpoint.open >= self._endpoint.capacity:
            self._endpoint.refused += 1
            raise CapacityReached("Full.")
        self._taken = True
        self._endpoint.open += 1
        self._endpoint.most = max(self._endpoint.most, self._endpoint.open)

    async def close(self) -> None:
        self._endpoint.open -= self._taken

    async def reset(self, **task: Any) -> StepResult[dict[str, Any]]:
        raise NotImplementedError

    async def step(self, action: Any) -> StepResult[dict[str, Any]]:
        raise NotImplementedError

    async def state(self) -> dict[str, Any]:
        return {}


async def test_sessions_are_used_again() -> None:
    endpoint = FakeEndpoint()
    pool = SessionPool(endpoint)
    for _ in range(5):
        pool.release(await pool.acquire())
    assert endpoint.most == 1
    await pool.close_idle()
    assert endpoint.open == 0


async def test_a_full_server_sets_the_number_of_sessions_and_nobody_fails() -> None:
    endpoint = FakeEndpoint(capacity=3)
    pool = SessionPool(endpoint)

    async def use() -> None:
        session = await pool.acquire()
        await asyncio.sleep(0.001)
        pool.release(session)

    await asyncio.gather(*(use() for _ in range(40)))
    assert endpoint.most == 3


async def test_no_more_sessions_are_opened_than_the_environment_should_run() -> None:
    endpoint = FakeEndpoint()
    endpoint.max_sessions = 3
    pool = SessionPool(endpoint)

    async def use() -> None:
        session = await pool.acquire()
        await asyncio.sleep(0.001)
        pool.release(session)

    await asyncio.gather(*(use() for _ in range(40)))
    assert (endpoint.most, endpoint.refused) == (3, 0)


async def test_waiting_for_a_session_that_is_in_use_has_no_time_limit() -> None:
    endpoint = FakeEndpoint()
    endpoint.max_sessions = 1
    pool = SessionPool(endpoint)
    session = await pool.acquire()
    waiting = asyncio.create_task(pool.acquire(open_timeout=0.001))
    await asyncio.sleep(0.05)
    assert not waiting.done()
    pool.release(session)
    assert await waiting is session


async def test_a_session_that_could_not_be_opened_makes_room_for_another() -> None:
    endpoint = FakeEndpoint()
    endpoint.max_sessions, endpoint.away = 1, True
    pool = SessionPool(endpoint, reconnect_timeout=0)
    waiting = [asyncio.create_task(pool.acquire()) for _ in range(2)]
    async with asyncio.timeout(20):
        results = await asyncio.gather(*waiting, return_exceptions=True)
    assert [type(result) for result in results] == [ConnectFailed] * 2


async def test_who_was_refused_beside_others_gets_a_session_when_there_is_one() -> None:
    endpoint = FakeEndpoint(capacity=0)
    pool = SessionPool(endpoint, reconnect_timeout=5)
    waiting = [asyncio.create_task(pool.acquire()) for _ in range(3)]
    await until(lambda: endpoint.refused >= 3)
    endpoint.capacity = 3
    async with asyncio.timeout(20):
        await asyncio.gather(*waiting)


async def test_a_server_that_is_gone_is_waited_for() -> None:
    endpoint = FakeEndpoint()
    pool = SessionPool(endpoint, reconnect_timeout=5)
    await pool.discard(await pool.acquire())
    endpoint.away = True
    waiting = asyncio.create_task(pool.acquire())
    await until(lambda: pool.unreachable_since is not None)
    endpoint.away = False
    await waiting
    assert pool.unreachable_since is None


async def test_patience_has_an_end() -> None:
    endpoint = FakeEndpoint()
    pool = SessionPool(endpoint, reconnect_timeout=0.2)
    await pool.discard(await pool.acquire())
    endpoint.away = True
    with pytest.raises(SessionError):
        await pool.acquire()


class Clock:
    """A clock that only sleeping moves."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock, pause = Clock(), asyncio.sleep

    async def sleep(seconds: float) -> None:
        clock.now += seconds
        await pause(0)

    monkeypatch.setattr(session_pool, "time", clock)
    monkeypatch.setattr(asyncio, "sleep", sleep)
    return clock


async def gone(pool: SessionPool, clock: Clock) -> float:
    """Seconds after which nobody waits any longer."""
    began = clock.now
    with pytest.raises(ConnectFailed):
        await pool.acquire()
    return clock.now - began


async def test_those_who_try_again_have_one_patience_together(clock: Clock) -> None:
    endpoint = FakeEndpoint()
    endpoint.away = True
    pool = SessionPool(endpoint, reconnect_timeout=10)
    assert await gone(pool, clock) > 10
    assert await gone(pool, clock) == 0, "the same wait has gone on"
    clock.now += session_pool.OUTAGE_RESET_S + 1
    assert await gone(pool, clock) > 10, "another wait, after a break"


async def test_a_server_that_was_back_has_all_of_ones_patience_again(clock: Clock) -> None:
    endpoint = FakeEndpoint()
    pool = SessionPool(endpoint, reconnect_timeout=10)
    kept = await pool.acquire()
    endpoint.away = True
    assert await gone(pool, clock) > 10 and pool.unreachable_since is not None
    pool.release(kept)
    assert pool.unreachable_since is None
    await pool.discard(await pool.acquire())
    assert await gone(pool, clock) > 10


async def test_a_real_server_with_one_place_serves_everybody_in_turn() -> None:
    with serving(Counter, max_sessions=1, queue_timeout=0.01) as served:
        pool = SessionPool(connect(served.url))

        async def use(number: int) -> str:
            session = await pool.acquire()
            result = await session.reset(goal=number)
            pool.release(session)
            return str(result.content)

        seen = await asyncio.gather(*(use(number) for number in range(1, 9)))
        assert seen == [f"Reach {number}." for number in range(1, 9)]
        await pool.close_idle()
