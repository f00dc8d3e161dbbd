"""Several clients on a server that is full: who gets the next session."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

import httpx
import pytest
from ludus_process import served_by_program
from pydantic_core import from_json
from websockets.asyncio.client import ClientConnection
from websockets.asyncio.client import connect as websocket
from world import Counter, serving, until

from ludus.errors import CapacityReached
from ludus.serve.capacity import ClientQuotas, SessionCapacity


async def fill(slots: SessionCapacity, *clients: str) -> None:
    for client in clients:
        await slots.acquire(0.0, client)


async def queue(
    slots: SessionCapacity, clients: Iterable[str], order: list[str]
) -> list[asyncio.Task[None]]:
    """Let these clients ask, one after the other; each notes when it was served."""

    async def ask(client: str) -> None:
        await slots.acquire(60.0, client)
        order.append(client)

    tasks = []
    for client in clients:
        tasks.append(asyncio.ensure_future(ask(client)))
        await asyncio.sleep(0)
    return tasks


async def test_clients_that_wait_take_turns() -> None:
    slots = SessionCapacity(1)
    await fill(slots, "holder")
    order: list[str] = []
    tasks = await queue(slots, ["a", "a", "a", "b", "b", "c"], order)
    assert slots.waiting == 6
    slots.release("holder")
    for _ in range(6):
        count = len(order) + 1
        await until(lambda count=count: len(order) == count)
        slots.release(order[-1])
    await asyncio.gather(*tasks)
    assert order == ["a", "b", "c", "a", "b", "a"]
    assert slots.in_use == slots.waiting == 0


async def test_a_client_that_holds_many_gets_no_more_while_others_wait() -> None:
    slots = SessionCapacity(6)
    await fill(slots, *["hog"] * 6)
    order: list[str] = []
    tasks = await queue(slots, ["hog", "hog", "late", "late", "late", "late"], order)
    for _ in range(6):
        slots.release("hog")
    await asyncio.gather(*tasks)
    assert order[:3] == ["late"] * 3, "three each is an equal share"
    assert sorted(order) == ["hog"] * 2 + ["late"] * 4


async def test_one_client_may_take_everything_while_nobody_else_waits() -> None:
    slots = SessionCapacity(1000)
    await fill(slots, *["collector"] * 1000)
    assert slots.in_use == 1000
    with pytest.raises(CapacityReached) as caught:
        await slots.acquire(0.01, "collector")
    assert "max_sessions_per_client" not in caught.value.details


async def test_who_gives_up_waiting_leaves_nothing_behind() -> None:
    slots = SessionCapacity(1)
    await fill(slots, "holder")
    order: list[str] = []
    leaving, staying = await queue(slots, ["a", "b"], order)
    leaving.cancel()
    await asyncio.wait([leaving])
    with pytest.raises(CapacityReached):
        await slots.acquire(0.01, "c")
    assert slots.waiting == 1
    slots.release("holder")
    await staying
    assert order == ["b"] and slots.in_use == 1


async def test_who_leaves_just_as_its_turn_comes_gives_the_slot_back() -> None:
    slots = SessionCapacity(1)
    await fill(slots, "holder")
    order: list[str] = []
    leaving, staying = await queue(slots, ["a", "b"], order)
    slots.release("holder")
    leaving.cancel()
    await staying
    assert order == ["b"] and slots.in_use == 1


def test_a_newcomer_does_not_pass_a_client_that_waits_at_another_worker() -> None:
    quotas = ClientQuotas(2)
    assert quotas.try_acquire("a", 0) and quotas.try_acquire("b", 1)
    assert not quotas.try_acquire("c", 1)
    quotas.begin_waiting("c", float("inf"), 1)
    quotas.release("a", 0)
    assert not quotas.try_acquire("d", 0) and quotas.acquire_next(["d"], 0) is None
    assert quotas.acquire_next(["c"], 1) == "c"
    quotas.end_waiting("c", 1)
    quotas.release("b", 1)
    assert quotas.try_acquire("d", 0) and (quotas.held(), quotas.held_by("c")) == (2, 1)


def test_a_worker_that_hangs_or_dies_does_not_stop_the_others() -> None:
    quotas = ClientQuotas(2)
    assert quotas.try_acquire("a", 0) and quotas.try_acquire("b", 1)
    quotas.begin_waiting("c", 0.0, 1)  # Its time is over, and it has not left the queue.
    quotas.release("a", 0)
    assert quotas.try_acquire("a", 0)
    quotas.clear_worker(1)
    assert quotas.held() == 1 and quotas.try_acquire("d", 0)


def test_the_cap_of_a_client_holds_over_all_workers_and_stops_nobody_else() -> None:
    quotas = ClientQuotas(5, per_client=2)
    assert quotas.try_acquire("a", 0) and quotas.try_acquire("a", 1)
    assert not quotas.try_acquire("a", 0) and not quotas.try_acquire("a", 1)
    quotas.begin_waiting("a", float("inf"), 0)
    assert quotas.try_acquire("b", 1), "nobody waits who may have more"
    assert quotas.acquire_next(["a"], 0) is None
    quotas.release("a", 1)
    assert quotas.acquire_next(["a"], 0) == "a"


async def dial(url: str, address: str) -> ClientConnection:
    """A connection from one of the addresses of loopback."""
    return await websocket(url, local_addr=(address, 0))


async def ready(line: ClientConnection) -> bool:
    """Whether this connection got a session."""
    try:
        await line.send('{"type":"reset"}')
        return bool(from_json(await line.recv())["type"] == "observation")
    finally:
        await line.close()


async def test_a_second_address_is_served_though_the_first_one_asked_earlier() -> None:
    with serving(Counter, max_sessions=4, queue_timeout=60.0) as served:
        slots = served.sessions.capacity
        held = [await dial(served.ws, "127.0.0.1") for _ in range(4)]
        await until(lambda: slots.in_use == 4)
        greedy = [await dial(served.ws, "127.0.0.1") for _ in range(20)]
        await until(lambda: slots.waiting == 20)
        modest = await dial(served.ws, "127.0.0.2")
        await until(lambda: slots.waiting == 21)
        await held.pop().close()
        assert await asyncio.wait_for(ready(modest), 60)
        for line in [*held, *greedy]:
            line.transport.abort()


async def test_one_client_may_not_hold_more_than_the_cap() -> None:
    with serving(Counter, max_sessions_per_client=2, queue_timeout=0.05) as served:
        held = [await dial(served.ws, "127.0.0.1") for _ in range(2)]
        await until(lambda: served.sessions.capacity.in_use == 2)
        refused = from_json(await (await dial(served.ws, "127.0.0.1")).recv())["data"]
        assert (refused["code"], refused["max_sessions_per_client"]) == ("CAPACITY_REACHED", 2)
        async with httpx.AsyncClient(trust_env=False) as http:
            reply = await http.post(f"{served.url}/reset")
            assert reply.status_code == 429 and int(reply.headers["retry-after"]) >= 1
        assert await ready(await dial(served.ws, "127.0.0.2"))
        for line in held:
            await line.close()


async def test_the_cap_holds_over_all_workers() -> None:
    options = ("--workers", "2", "--max-sessions-per-client", "3", "--queue-timeout", "0.05")
    with served_by_program("echo", *options) as program:
        create = {"jsonrpc": "2.0", "id": 1, "method": "openenv/session/create"}
        single = httpx.Limits(max_keepalive_connections=0)
        async with httpx.AsyncClient(trust_env=False, limits=single) as http:
            replies = [(await http.post(f"{program.url}/mcp", json=create)).json() for _ in "12345"]
        assert ["result" in reply for reply in replies] == [True] * 3 + [False] * 2
        assert replies[3]["error"]["data"]["max_sessions_per_client"] == 3
        assert await ready(await dial(program.ws, "127.0.0.2"))
