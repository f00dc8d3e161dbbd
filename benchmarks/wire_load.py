"""Load client of `wire.py`: a number of sessions, each stepping back to back for a fixed time.

A program of its own, so that every measurement starts with a fresh client; it prints one line of
JSON. Uses picows on uvloop, because a pure Python client would be slower than the servers.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import os
import time
from array import array
from pathlib import Path
from typing import TypedDict

import uvloop
from picows import WSFrame, WSListener, WSMsgType, WSTransport, ws_connect

_TIMEOUT_S = 30.0
"""For connecting, and for the last replies."""
_OBSERVATION_PREFIX = b'{"type":"observation",'
_RESET = b'{"type":"reset","data":{}}'
_CLOSE = b'{"type":"close"}'
_MAX_CONCURRENT_CONNECTS = 32


class Load(TypedDict):
    """The result of one measurement."""

    steps_per_second: float
    p50_ms: float
    p99_ms: float
    errors: int
    first_error: str | None
    client_cpu: float
    """Fraction of one core that this process used; near 1.0 it is the bottleneck."""
    server_cpu: float
    server_mib: float
    """Resident memory of the server while the sessions were still open."""


class Window:
    """Start and end of the measurement; infinite until the sessions are ready."""

    def __init__(self) -> None:
        self.begin = self.end = float("inf")

    def start(self, *, warmup: float, seconds: float) -> None:
        self.begin = time.perf_counter() + warmup
        self.end = self.begin + seconds


# mypy does not see the types of picows where it is not installed.
class Session(WSListener):  # type: ignore[misc, unused-ignore]
    """A closed loop: the next step is sent when the reply to the last one has arrived."""

    def __init__(self, number: int, window: Window) -> None:
        self._window = window
        self._template = b'{"type":"step","data":{"message":"session %d step %%d"}}' % number
        self._echo = b'"session %d step %%d"' % number
        self._expected = b'"ready"'
        self._sent_at = 0.0
        self._count = 0
        self._leaving = False
        self.ready = asyncio.get_running_loop().create_future()
        self.finished = asyncio.get_running_loop().create_future()
        self.num_replies = 0
        """Replies within the window; `latencies` has those of all steps sent within it."""
        self.latencies = array("d")
        self.errors: list[str] = []
        self._transport: WSTransport

    def on_ws_connected(self, transport: WSTransport) -> None:
        self._transport = transport
        transport.send(WSMsgType.TEXT, _RESET)

    def on_ws_frame(self, transport: WSTransport, frame: WSFrame) -> None:
        now = time.perf_counter()
        if frame.msg_type != WSMsgType.TEXT:
            return
        payload = frame.get_payload_as_bytes()
        correct = payload.startswith(_OBSERVATION_PREFIX) and self._expected in payload
        if correct and self._count < 2:
            correct = self._matches_fully(payload)
        if not correct:
            self.errors.append(payload[:300].decode(errors="replace"))
        if self._count == 0:
            _set_done(self.ready)
        else:
            self._handle_reply(now, correct)

    def on_ws_disconnected(self, transport: WSTransport) -> None:
        if not self._leaving:
            self.errors.append("The server closed the connection.")
        _set_done(self.ready)
        _set_done(self.finished)

    def step(self) -> None:
        count = self._count = self._count + 1
        self._expected = self._echo % count
        self._sent_at = time.perf_counter()
        self._transport.send(WSMsgType.TEXT, self._template % count)

    async def leave(self) -> None:
        if not self._transport.is_disconnected:
            self._leaving = True
            self._transport.send(WSMsgType.TEXT, _CLOSE)
            self._transport.disconnect()
            await self._transport.wait_disconnected()

    def _handle_reply(self, now: float, correct: bool) -> None:
        window = self._window
        if correct and self._sent_at >= window.begin:
            self.latencies.append(now - self._sent_at)
        if correct and window.begin <= now < window.end:
            self.num_replies += 1
        if now < window.end:
            self.step()
        else:
            _set_done(self.finished)

    def _matches_fully(self, payload: bytes) -> bool:
        """The first replies are parsed, because the cheap check is not conclusive."""
        message = json.loads(self._expected)
        frame = json.loads(payload)
        observation = frame["data"]["observation"]
        return (
            frame["type"] == "observation"
            and frame["data"]["done"] is False
            and observation["echoed_message"] == message
            and observation["message_length"] == (len(message) if self._count else 0)
        )


def _set_done(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


async def measure(port: int, pid: int, sessions: int, *, seconds: float, warmup: float) -> Load:
    window = Window()
    clients = await _connect(port, sessions, window)
    gc.collect()
    gc.disable()
    window.start(warmup=warmup, seconds=seconds)
    for client in clients:
        client.step()
    await asyncio.sleep(window.begin - time.perf_counter())
    start, client_cpu, server_cpu = time.perf_counter(), time.process_time(), cpu_seconds(pid)
    await asyncio.sleep(window.end - time.perf_counter())
    wall = time.perf_counter() - start
    client_cpu = time.process_time() - client_cpu
    server_cpu = cpu_seconds(pid) - server_cpu
    _, missing = await asyncio.wait([client.finished for client in clients], timeout=_TIMEOUT_S)
    memory = resident_mib(pid)
    await asyncio.wait(
        [asyncio.ensure_future(client.leave()) for client in clients], timeout=_TIMEOUT_S
    )
    errors = [error for client in clients for error in client.errors]
    errors += ["No reply arrived."] * len(missing)
    latencies = sorted(latency for client in clients for latency in client.latencies)
    return Load(
        steps_per_second=sum(client.num_replies for client in clients) / seconds,
        p50_ms=_percentile(latencies, 0.50) * 1000,
        p99_ms=_percentile(latencies, 0.99) * 1000,
        errors=len(errors),
        first_error=errors[0] if errors else None,
        client_cpu=client_cpu / wall,
        server_cpu=server_cpu / wall,
        server_mib=memory,
    )


async def _connect(port: int, sessions: int, window: Window) -> list[Session]:
    """Open every session and reset it, a few at a time."""
    slots = asyncio.Semaphore(_MAX_CONCURRENT_CONNECTS)

    async def connect(number: int) -> Session:
        session = Session(number, window)
        async with slots, asyncio.timeout(_TIMEOUT_S):
            await ws_connect(
                lambda: session,
                f"ws://127.0.0.1:{port}/ws",
                websocket_handshake_timeout=_TIMEOUT_S,
            )
            await session.ready
        return session

    return await asyncio.gather(*map(connect, range(sessions)))


def _percentile(ordered: list[float], share: float) -> float:
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))] if ordered else float("nan")


def cpu_seconds(pid: int) -> float:
    """User and system time of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def resident_mib(pid: int) -> float:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    raise RuntimeError(f"Process {pid} has ended.")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--pid", type=int, required=True, help="The server's process.")
    parser.add_argument("--sessions", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--warmup", type=float, default=0.5)
    args = parser.parse_args()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        load = measure(args.port, args.pid, args.sessions, seconds=args.seconds, warmup=args.warmup)
        print(json.dumps(runner.run(load)))


if __name__ == "__main__":
    main()
