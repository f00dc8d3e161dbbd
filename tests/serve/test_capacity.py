"""Slots, the queue in front of them, and shutting down."""

from __future__ import annotations

import asyncio
import threading

import httpx
import pytest
from websockets.asyncio.client import connect as websocket
from world import Counter, Slow, Two, serving, until

from ludus import ToolEnvironment, connect, tool
from ludus.environment.introspection import build_env_spec
from ludus.errors import CapacityReached, FactoryFailed, SessionError
from ludus.serve.capacity import SessionCapacity
from ludus.serve.config import ServeConfig, ServeError, check_config


async def test_a_newcomer_waits_for_a_slot_and_gets_it() -> None:
    with serving(Counter, max_sessions=1, queue_timeout=60.0) as served:
        endpoint = connect(served.url)
        first = endpoint.session()
        await first.open()

        async def second() -> object:
            async with endpoint.session() as session:
                return (await session.reset(goal=3)).content

        waiting = asyncio.ensure_future(second())
        await until(lambda: served.sessions.capacity.waiting == 1)
        await first.close()
        assert await asyncio.wait_for(waiting, 60) == "Reach 3."


async def test_a_full_server_says_so_after_a_bounded_wait() -> None:
    with serving(Counter, max_sessions=1, queue_timeout=0.2) as served:
        async with connect(served.url).session():
            with pytest.raises(CapacityReached) as caught:
                await connect(served.url).session().open()
            details = caught.value.details
            assert (details["active_sessions"], details["max_sessions"]) == (1, 1)
            assert details["retry_after_s"] > 0
            async with httpx.AsyncClient(trust_env=False) as client:
                reply = await client.post(f"{served.url}/reset")
            assert reply.status_code == 503 and int(reply.headers["retry-after"]) >= 1
        assert served.sessions.capacity.waiting == 0


async def test_the_queue_is_first_come_first_served_and_forgets_who_left() -> None:
    with serving(Counter, max_sessions=1, queue_timeout=5.0) as served:
        holder = await websocket(served.ws)
        await until(lambda: served.sessions.capacity.in_use == 1)
        order: list[str] = []

        async def newcomer(name: str) -> None:
            async with websocket(served.ws) as line:
                await line.send('{"type":"state"}')
                await line.recv()
                order.append(name)

        leaver = await websocket(served.ws)
        await until(lambda: served.sessions.capacity.waiting == 1)
        first = asyncio.ensure_future(newcomer("first"))
        await until(lambda: served.sessions.capacity.waiting == 2)
        second = asyncio.ensure_future(newcomer("second"))
        await until(lambda: served.sessions.capacity.waiting == 3)
        leaver.transport.abort()
        await until(lambda: served.sessions.capacity.waiting == 2)
        await holder.close()
        await asyncio.wait_for(asyncio.gather(first, second), 10)
        assert order == ["first", "second"]


async def test_who_gives_up_waiting_leaves_nothing_behind() -> None:
    capacity = SessionCapacity(1)
    await capacity.acquire(0.0)
    leaving, staying = (asyncio.ensure_future(capacity.acquire(60.0)) for _ in range(2))
    await until(lambda: capacity.waiting == 2)
    leaving.cancel()
    await asyncio.wait([leaving])
    with pytest.raises(CapacityReached):
        await capacity.acquire(0.01)
    assert capacity.waiting == 1
    capacity.release()
    await staying
    assert (capacity.in_use, capacity.waiting) == (1, 0)


async def test_who_leaves_just_as_its_turn_comes_gives_the_session_back() -> None:
    capacity = SessionCapacity(1)
    await capacity.acquire(0.0)
    leaving, staying = (asyncio.ensure_future(capacity.acquire(60.0)) for _ in range(2))
    await until(lambda: capacity.waiting == 2)
    capacity.release()
    leaving.cancel()
    await staying
    assert leaving.cancelled() and capacity.in_use == 1


async def test_a_session_that_another_worker_releases_is_found() -> None:
    held = [0, 0]
    first, second = (SessionCapacity(1, held=held, worker=worker) for worker in (0, 1))
    await first.acquire(0.0)
    waiting = asyncio.ensure_future(second.acquire(60.0))
    await until(lambda: second.waiting == 1)
    first.release()
    await waiting
    assert held == [0, 1]


class Unbuildable(Two):
    """Cannot be made."""

    def __init__(self) -> None:
        raise RuntimeError("no licence")


async def test_an_environment_that_cannot_be_built_says_why_and_takes_no_slot() -> None:
    with serving(Unbuildable) as served:
        with pytest.raises(FactoryFailed, match="no licence") as caught:
            await connect(served.url).session().open()
        assert caught.value.details["factory_name"] == "Unbuildable"
        assert served.sessions.capacity.in_use == 0


class Meeting(ToolEnvironment):
    """A step ends when sixteen are being taken."""

    blocking = True
    everybody = threading.Barrier(16)

    def reset(self, *, seed: int | None = None) -> str:
        return "Ready."

    @tool
    def meet(self) -> str:
        """Wait for the others."""
        self.everybody.wait(60)
        return "All are here."


async def test_blocking_steps_run_beside_each_other_and_beside_the_loop() -> None:
    with serving(Meeting) as served:

        async def one() -> object:
            async with connect(served.url).session() as session:
                await session.reset()
                return (await session.call("meet", {})).content

        assert await asyncio.gather(*(one() for _ in range(16))) == ["All are here."] * 16


async def test_stopping_lets_the_running_step_finish() -> None:
    with serving(Slow) as served:
        async with connect(served.url).session() as session:
            await session.reset(name="finishing")
            running = asyncio.ensure_future(session.call("sleep", {"seconds": 0.6}))
            await until(lambda: "finishing" in Slow.begun)
            served.server.should_exit = True
            assert (await running).content == "Slept, 1 calls."
            with pytest.raises(SessionError):
                session._socket._resume_timeout = 0.2  # type: ignore[attr-defined]
                await session.call("sleep", {"seconds": 0.0})


class Alone(Two):
    """May not be run twice in a process."""

    concurrent = False


def test_what_would_be_unsafe_or_cannot_work_is_refused_with_a_way_out() -> None:
    contract = build_env_spec(Counter)
    with pytest.raises(ServeError, match="`token`"):
        check_config(contract, ServeConfig(host="0.0.0.0"))
    check_config(contract, ServeConfig(host="0.0.0.0", token="secret"))
    check_config(contract, ServeConfig(host="0.0.0.0", allow_no_token=True))
    with pytest.raises(ServeError, match="`max_sessions`"):
        check_config(build_env_spec(Alone), ServeConfig(max_sessions=2))
    check_config(build_env_spec(Alone), ServeConfig(max_sessions=1))
