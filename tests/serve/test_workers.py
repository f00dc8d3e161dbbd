"""Several worker processes behave as one server."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path
from typing import Any

import httpx
import pytest
from ludus_process import Program, served_by_program
from pydantic_core import from_json
from websockets.asyncio.client import connect as websocket
from world import until

from ludus import connect
from ludus.client.session import Session
from ludus.errors import CapacityReached


def ask(program: Program, method: str, **params: Any) -> dict[str, Any]:
    """Each call on a connection of its own, so that any worker may get it."""
    body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
    reply = httpx.post(f"{program.url}/mcp", json=body, trust_env=False, timeout=30)
    return dict(reply.json())


def metrics(program: Program) -> str:
    return httpx.get(f"{program.url}/metrics", trust_env=False).text


async def test_a_session_is_known_to_every_worker() -> None:
    with served_by_program("echo", "--workers", "2") as program:
        ids = [ask(program, "openenv/session/create")["result"]["session_id"] for _ in range(12)]
        for id in ids * 2:
            called = ask(
                program,
                "tools/call",
                name="echo_message",
                arguments={"message": "hi"},
                session_id=id,
            )
            assert called["result"]["data"] == "hi"
        for id in ids:
            async with websocket(f"{program.ws}?session_id={id}") as line:
                await line.send('{"type":"state"}')
                assert from_json(await line.recv())["data"]["step_count"] == 2
        text = metrics(program)
        assert "ludus_sessions 12.0" in text and "ludus_steps_total 24.0" in text
        for id in ids:
            closed = ask(program, "openenv/session/close", session_id=id)
            assert closed["result"]["closed"] is True
        assert {id.partition("-")[0] for id in ids} == {"0", "1"}, "one worker got everything"


async def test_a_dropped_line_finds_its_session_whichever_worker_answers() -> None:
    with served_by_program("catch", "--workers", "2") as program:
        endpoint = connect(program.url)

        async def play() -> float | None:
            async with endpoint.session() as session:
                result = await session.reset(seed=1)
                while not result.done:
                    cut(session)
                    result = await session.call("move", {"direction": "left"})
                return result.reward

        rewards = await asyncio.gather(*(play() for _ in range(8)))
        assert len(set(rewards)) == 1


def cut(session: Session) -> None:
    session._socket._connection.transport.abort()  # type: ignore[attr-defined]


async def test_the_limit_on_sessions_holds_over_all_workers() -> None:
    options = ("--workers", "2", "--max-sessions", "3", "--queue-timeout", "0.3")
    with served_by_program("echo", *options) as program:
        endpoint = connect(program.url)
        held = [endpoint.session() for _ in range(3)]
        for session in held:
            await session.open()
            await session.reset()
        for _ in range(3):
            with pytest.raises(CapacityReached):
                async with endpoint.session() as refused:
                    await refused.reset()
        await held[0].close()
        async with endpoint.session() as welcome:
            await welcome.reset()
        for session in held[1:]:
            await session.close()


async def test_a_worker_that_dies_is_started_again() -> None:
    with served_by_program("echo", "--workers", "2", "--max-sessions", "4") as program:
        for _ in range(4):
            ask(program, "openenv/session/create")
        for child in children(program.process.pid):
            os.kill(child, signal.SIGKILL)
        await until(lambda: answers(program), seconds=30)
        # Their sessions died with them, and so did their claim on the slots.
        assert "result" in ask(program, "openenv/session/create")


def children(pid: int) -> list[int]:
    """The worker processes of a supervisor."""
    listed = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    workers = [
        int(child)
        for child in listed
        if b"spawn_main" in Path(f"/proc/{child}/cmdline").read_bytes()
    ]
    assert len(workers) == 2
    return workers


def answers(program: Program) -> bool:
    try:
        return httpx.get(f"{program.url}/health", trust_env=False).status_code == 200
    except httpx.HTTPError:
        return False
