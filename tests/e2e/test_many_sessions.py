"""Thousands of sessions at once on one server process."""

from __future__ import annotations

import asyncio
import resource

import httpx
import picows
import pytest
from ludus_process import Program, served_by_program

SESSIONS = 5_000
STEPS = 3


class Player(picows.WSListener):
    """One session: a reset, then steps, each answered before the next is sent."""

    def __init__(self) -> None:
        self.reply: asyncio.Future[bytes] | None = None

    def on_ws_connected(self, transport: picows.WSTransport) -> None:
        self.transport = transport

    def on_ws_frame(self, transport: picows.WSTransport, frame: picows.WSFrame) -> None:
        if self.reply is not None and frame.msg_type == picows.WSMsgType.TEXT:
            self.reply.set_result(frame.get_payload_as_bytes())

    async def ask(self, message: bytes) -> bytes:
        self.reply = asyncio.get_running_loop().create_future()
        self.transport.send(picows.WSMsgType.TEXT, message)
        return await asyncio.wait_for(self.reply, 60)


async def play_all(program: Program) -> None:
    opening = asyncio.Semaphore(200)

    async def opened() -> Player:
        async with opening:
            _, player = await picows.ws_connect(Player, program.ws)
            assert isinstance(player, Player)
            return player

    players = await asyncio.gather(*(opened() for _ in range(SESSIONS)))
    await asyncio.gather(*(player.ask(b'{"type":"reset"}') for player in players))
    assert count(await metrics(program), "ludus_sessions") == SESSIONS
    for step in range(STEPS):
        message = b'{"type":"step","data":{"message":"step %d"}}' % step
        replies = await asyncio.gather(*(player.ask(message) for player in players))
        assert all(b'"echoed_message":"step %d"' % step in reply for reply in replies)
    assert count(await metrics(program), "ludus_steps_total") == SESSIONS * STEPS
    for player in players:
        player.transport.send(picows.WSMsgType.TEXT, b'{"type":"close"}')
    await asyncio.gather(*(player.transport.wait_disconnected() for player in players))
    for _ in range(200):
        if count(await metrics(program), "ludus_sessions") == 0:
            return
        await asyncio.sleep(0.05)
    raise AssertionError("some sessions were not given back")


async def metrics(program: Program) -> str:
    async with httpx.AsyncClient(trust_env=False) as client:
        return (await client.get(f"{program.url}/metrics", timeout=60)).text


def count(text: str, name: str) -> float:
    return float(next(line for line in text.splitlines() if line.startswith(f"{name} ")).split()[1])


def test_five_thousand_sessions_are_open_at_once_and_all_of_them_step() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < SESSIONS + 500:
        pytest.skip(f"this machine allows only {hard} open files")
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    try:
        with served_by_program("echo", "--max-sessions", str(SESSIONS)) as program:
            asyncio.run(play_all(program))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
