"""The load of `wire.py`: so many sessions, each stepping back to back for a fixed time.

A program of its own, so that every measurement begins with the same client; it prints one line of
JSON. picows on uvloop, because a client in Python would be slower than the servers it measures.
Which server is behind the port, and what the numbers mean, is `wire.py`'s business.
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

_PATIENCE = 30.0
"""Seconds for connecting, and for the last replies to come in."""
_HEAD = b'{"type":"observation",'
_RESET = b'{"type":"reset","data":{}}'
_CLOSE = b'{"type":"close"}'
_CONNECTS_AT_ONCE = 32


class Load(TypedDict):
    """What one measurement gave."""

    steps_per_second: float
    p50_ms: float
    p99_ms: float
    errors: int
    first_error: str | None
    client_cpu: float
    """Share of one core that this process used; near 1.0, it was the bottleneck."""
    server_cpu: float
    server_mib: float
    """Resident memory of the server while the sessions were still open."""


class Clock:
    """When measuring begins and ends; both lie in the future until the sessions are ready."""

    def __init__(self) -> None:
        self.begin = self.end = float("inf")

    def start(self, *, warmup: float, seconds: float) -> None:
        self.begin = time.perf_counter() + warmup
        self.end = self.begin + seconds


class Session(WSListener):  # type: ignore[misc, unused-ignore]
    """One closed loop: the next step is sent when the reply to the last one has come."""

    def __init__(self, number: int, clock: Clock) -> None:
        self._clock = clock
        self._template = b'{"type":"step","data":{"message":"session %d step %%d"}}' % number
        self._echo = b'"session %d step %%d"' % number
        self._expected = b'"ready"'
        self._sent_at = 0.0
        self._count = 0
        self._leaving = False
        self.ready = asyncio.get_running_loop().create_future()
        self.finished = asyncio.get_running_loop().create_future()
        self.answered = 0
        """Replies that came within the time; `latencies` has those of all steps sent in it."""
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
        right = payload.startswith(_HEAD) and self._expected in payload
        if right and self._count < 2:
            right = self._right_in_full(payload)
        if not right:
            self.errors.append(payload[:300].decode(errors="replace"))
        if self._count == 0:
            _settle(self.ready)
        else:
            self._replied(now, right)

    def on_ws_disconnected(self, transport: WSTransport) -> None:
        if not self._leaving:
            self.errors.append("The server hung up.")
        _settle(self.ready)
        _settle(self.finished)

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

    def _replied(self, now: float, right: bool) -> None:
        clock = self._clock
        if right and self._sent_at >= clock.begin:
            self.latencies.append(now - self._sent_at)
        if right and clock.begin <= now < clock.end:
            self.answered += 1
        if now < clock.end:
            self.step()
        else:
            _settle(self.finished)

    def _right_in_full(self, payload: bytes) -> bool:
        """The first replies are read as JSON: the cheap check alone could be fooled."""
        said = json.loads(self._expected)
        frame = json.loads(payload)
        seen = frame["data"]["observation"]
        return (
            frame["type"] == "observation"
            and frame["data"]["done"] is False
            and seen["echoed_message"] == said
            and seen["message_length"] == (len(said) if self._count else 0)
        )


def _settle(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


async def measure(port: int, pid: int, sessions: int, *, seconds: float, warmup: float) -> Load:
    clock = Clock()
    players = await _connect(port, sessions, clock)
    gc.collect()
    gc.disable()
    clock.start(warmup=warmup, seconds=seconds)
    for player in players:
        player.step()
    await asyncio.sleep(clock.begin - time.perf_counter())
    began, ours, theirs = time.perf_counter(), time.process_time(), cpu_seconds(pid)
    await asyncio.sleep(clock.end - time.perf_counter())
    wall = time.perf_counter() - began
    ours, theirs = time.process_time() - ours, cpu_seconds(pid) - theirs
    _, missing = await asyncio.wait([player.finished for player in players], timeout=_PATIENCE)
    memory = resident_mib(pid)
    await asyncio.wait([asyncio.ensure_future(p.leave()) for p in players], timeout=_PATIENCE)
    errors = [error for player in players for error in player.errors]
    errors += ["No reply came."] * len(missing)
    latencies = sorted(latency for player in players for latency in player.latencies)
    return Load(
        steps_per_second=sum(player.answered for player in players) / seconds,
        p50_ms=_percentile(latencies, 0.50) * 1000,
        p99_ms=_percentile(latencies, 0.99) * 1000,
        errors=len(errors),
        first_error=errors[0] if errors else None,
        client_cpu=ours / wall,
        server_cpu=theirs / wall,
        server_mib=memory,
    )


async def _connect(port: int, sessions: int, clock: Clock) -> list[Session]:
    """Open every session and reset it, a few at a time."""
    slots = asyncio.Semaphore(_CONNECTS_AT_ONCE)

    async def one(number: int) -> Session:
        player = Session(number, clock)
        async with slots, asyncio.timeout(_PATIENCE):
            await ws_connect(
                lambda: player,
                f"ws://127.0.0.1:{port}/ws",
                websocket_handshake_timeout=_PATIENCE,
            )
            await player.ready
        return player

    return await asyncio.gather(*map(one, range(sessions)))


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
    raise RuntimeError(f"Process {pid} has no memory: it has died.")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--pid", type=int, required=True, help="The server's process.")
    parser.add_argument("--sessions", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--warmup", type=float, default=0.5)
    given = parser.parse_args()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        load = measure(
            given.port, given.pid, given.sessions, seconds=given.seconds, warmup=given.warmup
        )
        print(json.dumps(runner.run(load)))


if __name__ == "__main__":
    main()
