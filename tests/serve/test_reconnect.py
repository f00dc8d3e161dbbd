"""What happens to sessions and slots when sockets break."""

from __future__ import annotations

import asyncio
import random
import threading
import time

import pytest
from pydantic_core import from_json
from websockets.asyncio.client import connect as websocket
from world import Counter, Slow, serving, until

from ludus import connect
from ludus.client.session import Session
from ludus.client.websocket import WebSocketClient
from ludus.errors import SessionLost
from ludus.serve.metrics import RESUMED
from serve.cutting_proxy import CuttingProxy


def cut(session: Session) -> None:
    """Break a session's line without a word."""
    line: WebSocketClient = session._socket  # type: ignore[attr-defined]
    assert line._connection is not None
    line._connection.transport.abort()


async def test_a_dropped_line_comes_back_to_the_same_episode() -> None:
    with serving(Counter) as served:
        async with connect(served.url).session() as session:
            await session.reset(goal=6)
            await session.call("add", {"number": 2})
            cut(session)
            assert (await session.call("add", {"number": 2})).content == "Total 4."
            cut(session)
            assert (await session.call("add", {"number": 2})).reward == 1.0
            assert len(served.sessions) == 1
        await until(lambda: len(served.sessions) == 0)


async def test_a_step_that_was_running_when_the_line_dropped_is_done_once() -> None:
    with serving(Slow) as served:
        async with connect(served.url).session() as session:
            await session.reset(name="dropped")
            running = asyncio.ensure_future(session.call("sleep", {"seconds": 0.3}))
            await until(lambda: "dropped" in Slow.begun)
            cut(session)
            assert (await running).content == "Slept, 1 calls."
            assert (await session.call("sleep", {"seconds": 0.0})).content == "Slept, 2 calls."


async def test_two_hundred_sockets_cut_at_random_finish_every_episode() -> None:
    chance = random.Random(7)
    with serving(Counter) as served:
        async with CuttingProxy(served.url) as proxy:
            returns: dict[int, float] = {}
            begun = 0

            async def play(goal: int) -> None:
                nonlocal begun
                async with connect(proxy.url).session() as session:
                    result = await session.reset(goal=goal)
                    begun += 1
                    await until(lambda: begun == 50)
                    total = 0.0
                    while not result.done:
                        await asyncio.sleep(0.01)
                        result = await session.call("add", {"number": 1})
                        total += result.reward or 0.0
                    returns[goal] = total
                    assert (await session.state())["step_count"] == goal

            async def saw() -> None:
                await until(lambda: begun == 50)
                while proxy.cuts < 200:
                    await asyncio.sleep(0.02)
                    proxy.cut_some(chance, 10)

            async with asyncio.TaskGroup() as group:
                cutting = group.create_task(saw())
                for goal in range(30, 80):
                    group.create_task(play(goal))
                await cutting
            assert proxy.cuts >= 200
            assert returns == dict.fromkeys(range(30, 80), 1.0)
        await until(lambda: len(served.sessions) == 0)
        assert served.sessions.capacity.in_use == 0
        assert served.sessions.metrics.total(RESUMED) >= 100, (
            "hardly a cut hit a session that was playing"
        )


async def test_a_session_that_nobody_comes_back_to_is_given_up_after_the_grace_period() -> None:
    with serving(Counter, reconnect_timeout=0.3) as served:
        session = connect(served.url).session()
        await session.open()
        await session.reset()
        cut_at = time.monotonic()
        cut(session)
        await until(lambda: len(served.sessions) == 0)
        assert time.monotonic() - cut_at > 0.29, "it was given up before its time"
        with pytest.raises(SessionLost, match="not exist"):
            await session.call("add", {"number": 1})


async def test_a_restarted_server_is_a_lost_session_and_not_a_new_one() -> None:
    with serving(Counter) as first:
        session = connect(first.url).session()
        await session.open()
        await session.reset(goal=9)
        port = int(first.url.rpartition(":")[2])
    with serving(Counter, port=port) as second:
        with pytest.raises(SessionLost, match="not exist"):
            await session.call("add", {"number": 1})
        assert len(second.sessions) == 0


class Held(Slow):
    """A step ends when the test says so."""

    wake = threading.Event()


async def test_a_client_that_cannot_resume_frees_its_slot_at_once_even_during_a_step() -> None:
    with serving(Held) as served:
        line = await websocket(served.ws)
        await line.send('{"type":"reset","data":{"name":"gone"}}')
        await line.recv()
        await line.send('{"type":"step","data":{"seconds":60.0}}')
        await until(lambda: "gone" in Held.begun)
        line.transport.abort()
        await until(lambda: served.sessions.capacity.in_use == 0)
        # The environment is closed after its step has returned, and not beside it.
        assert "gone" not in Held.closed
        Held.wake.set()
        await until(lambda: "gone" in Held.closed)


async def test_a_half_open_socket_is_found_by_ping_and_freed() -> None:
    with serving(Counter, ping_interval=0.2) as served:
        port = int(served.url.rpartition(":")[2])
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(
            b"GET /ws HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
        )
        await reader.readuntil(b"\r\n\r\n")
        await until(lambda: len(served.sessions) == 1)
        # It never answers a ping, as a peer does whose machine has gone.
        await until(lambda: len(served.sessions) == 0)
        writer.transport.abort()


async def test_an_idle_session_is_closed() -> None:
    with serving(Counter, idle_timeout=0.3) as served:
        async with websocket(served.ws) as line:
            await line.send('{"type":"reset"}')
            await line.recv()
            await until(lambda: len(served.sessions) == 0)


async def test_a_session_that_is_used_by_other_endpoints_is_not_idle() -> None:
    """Those of MCP call the session itself."""
    with serving(Counter, idle_timeout=0.5) as served:
        registry = served.sessions
        session = await registry.create()
        before = session.last_used_at
        await session.reset({})
        assert session.last_used_at > before and not session.busy
        reset_at = session.last_used_at
        assert registry.get(session.id) is session and session.last_used_at > reset_at
        with session._in_use():
            assert session.busy and not registry.is_expired(session, session.last_used_at + 9)
        assert registry.is_expired(session, session.last_used_at + 9)
        await registry.destroy(session)


async def test_requests_sent_ahead_are_answered_in_their_order() -> None:
    with serving(Slow) as slow, serving(Counter) as quick:
        for served, step, reply in (
            (slow, '{"type":"step","data":{"seconds":0}}', "Slept, {} calls."),
            (quick, '{"type":"step","data":{"number":1}}', "Total {}."),
        ):
            async with websocket(served.ws) as line:
                await line.send('{"type":"reset","data":{}}')
                await line.recv()
                for _ in range(4):
                    await line.send(step)
                    await line.send('{"type":"state"}')
                for count in range(1, 5):
                    seen = from_json(await line.recv())["data"]["observation"]["text"]
                    assert seen == reply.format(count)
                    assert from_json(await line.recv())["data"]["step_count"] == count


async def test_a_client_that_sends_without_end_is_made_to_wait() -> None:
    with serving(Slow) as served:
        async with websocket(served.ws) as line:
            await line.send('{"type":"reset","data":{}}')
            await line.recv()
            for _ in range(300):
                await line.send('{"type":"step","data":{"seconds":0.001}}')
            last = ""
            for _ in range(300):
                last = from_json(await line.recv())["data"]["observation"]["text"]
            assert last == "Slept, 300 calls."
