"""Clients that do not take their replies cost little memory, and in the end their connection."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest
from ludus_process import served_by_program
from pydantic_core import from_json
from websockets.asyncio.client import connect as websocket
from websockets.sync.client import connect as blocking_websocket
from world import serving, until, wait_until

from ludus.serve.ws_fast_path import FastWsConnection
from serve.silent_client import Large, LargeInThreads, SilentClient, resident_mib

RESET, STEP = b'{"type":"reset"}', b'{"type":"step","data":{}}'
CALL = b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"look"}}'
TESTS = Path(__file__).parent.parent


@pytest.mark.parametrize("environment", [Large, LargeInThreads])
def test_clients_that_never_read_leave_the_server_small_and_others_served(
    environment: type[Large],
) -> None:
    spec = f"serve.silent_client:{environment.__name__}"
    with served_by_program(spec, cwd=TESTS) as program, ExitStack() as stack:
        reader = stack.enter_context(blocking_websocket(program.ws, max_size=None))
        silent = [stack.enter_context(SilentClient(program.url)) for _ in range(10)]
        for client in silent:
            client.upgrade("/ws")
            client.send_frames([RESET, *[STEP] * 500])
        for _ in range(40):
            for client in silent:
                client.send_rest()
            for request in (RESET, STEP):
                reader.send(request.decode())
                assert from_json(reader.recv())["type"] == "observation"
            # 70 MiB to begin with, and a few replies for each client.
            assert resident_mib(program.process.pid) < 220


def test_a_session_of_another_worker_is_not_read_ahead_either() -> None:
    options = ("--workers", "2")
    with (
        served_by_program("serve.silent_client:Large", *options, cwd=TESTS) as program,
        ExitStack() as stack,
    ):
        create = {"jsonrpc": "2.0", "id": 1, "method": "openenv/session/create"}
        silent = [stack.enter_context(SilentClient(program.url)) for _ in range(8)]
        for client in silent:
            # Every other one lands at a worker that does not have its session.
            reply = httpx.post(f"{program.url}/mcp", json=create, trust_env=False).json()
            client.upgrade(f"/ws?session_id={reply['result']['session_id']}")
            client.send_frames([RESET, *[STEP] * 500])
        before = resident_mib(program.process.pid)
        for _ in range(40):
            for client in silent:
                client.send_rest()
            assert httpx.get(f"{program.url}/health", trust_env=False).status_code == 200
            assert resident_mib(program.process.pid) < before + 220


@pytest.mark.parametrize("environment", [Large, LargeInThreads])
async def test_a_client_that_reads_late_gets_every_reply_in_order(
    environment: type[Large],
) -> None:
    with serving(environment) as served:
        async with websocket(served.ws, max_size=None) as line:
            await line.send(RESET.decode())
            await line.recv()
            for _ in range(100):
                await line.send(STEP.decode())
            for number in range(1, 101):
                seen = from_json(await line.recv())["data"]["observation"]["text"]
                assert seen.partition(" ")[0] == str(number)


@pytest.mark.parametrize("environment", [Large, LargeInThreads])
@pytest.mark.parametrize(("path", "requests"), [("/ws", [RESET, STEP]), ("/mcp", [CALL])])
def test_a_client_that_takes_nothing_is_cut_off(
    environment: type[Large], path: str, requests: list[bytes]
) -> None:
    with serving(environment, send_timeout=0.2) as served, SilentClient(served.url) as client:
        client.upgrade(path)
        client.send_frames([*requests, *[requests[-1]] * 50])
        wait_until(lambda: b"ludus_steps_total 0.0" not in served.sessions.metrics.text())
        wait_until(lambda: len(served.sessions) == 0)
        wait_until(lambda: not served.server.server_state.connections)


def test_a_client_that_takes_no_http_response_is_cut_off(
    capfd: pytest.CaptureFixture[str],
) -> None:
    with serving(Large, send_timeout=0.2) as served, SilentClient(served.url) as client:
        client.send_posts("/step", b'{"action":{}}', 50)
        wait_until(lambda: served.server.server_state.total_requests > 0)
        wait_until(lambda: not served.server.server_state.connections)
        wait_until(lambda: not served.server.server_state.tasks)
        assert served.sessions.capacity.in_use == 0
    assert capfd.readouterr().err == ""


async def test_a_client_that_is_paused_is_not_taken_for_dead(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pings = 0
    ping = FastWsConnection.send_user_specific_ping

    def count(line: FastWsConnection, transport: Any) -> None:
        nonlocal pings
        pings += 1
        ping(line, transport)

    monkeypatch.setattr(FastWsConnection, "send_user_specific_ping", count)
    with serving(Large, ping_interval=0.1) as served:
        async with websocket(served.ws, max_size=None, ping_interval=None) as line:
            for request in (RESET, *[STEP] * 60):
                await line.send(request.decode())
            # It does not read meanwhile, and so answers no ping.
            await until(lambda: pings >= 4)
            for _ in range(61):
                await line.recv()


async def test_a_slow_client_that_takes_something_is_left_alone() -> None:
    with serving(Large, send_timeout=0.5) as served:
        async with websocket(served.ws, max_size=None, max_queue=1) as line:
            await line.send(RESET.decode())
            await line.recv()
            for _ in range(20):
                await line.send(STEP.decode())
            for number in range(1, 21):
                await asyncio.sleep(0.1)
                seen = from_json(await line.recv())["data"]["observation"]["text"]
                assert seen.partition(" ")[0] == str(number)
