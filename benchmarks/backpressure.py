"""Memory of a server whose clients ask for large observations and never read the replies.

    python benchmarks/backpressure.py [--clients 20] [--requests 2000] [--seconds 15] [--workers 1]

Every client sends all its requests at once, over each route in turn: WebSocket `/ws` with an
environment that is stepped on the event loop and with one that is stepped in threads, WebSocket
`/mcp`, and pipelined `POST /step`. One more client steps a session properly all the while, and the
resident memory of all processes of the server is sampled. Exit code 1 when it passes the limit or
when the proper client was not served. Everything stays on 127.0.0.1.
"""

from __future__ import annotations

import argparse
import base64
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table
from websockets.sync.client import connect

HERE = Path(__file__).parent
STEP = b'{"type":"step","data":{}}'
RESET = b'{"type":"reset"}'
CALL = b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"look","arguments":{}}}'
POST = b'{"action":{}}'
SAMPLE_INTERVAL_S = 0.05
STOP_AT_MIB = 6000
"""A server that grows beyond this is stopped, so that the machine survives the measurement."""


@dataclass(frozen=True, slots=True)
class Route:
    """Requests that are sent over one route, and the environment that answers them."""

    name: str
    environment: str
    path: str | None
    """The path of the WebSocket; None for plain HTTP."""
    first: bytes
    request: bytes


ROUTES = (
    Route("/ws, event loop", "Instant", "/ws", RESET, STEP),
    Route("/ws, threads", "Threaded", "/ws", RESET, STEP),
    Route("/mcp", "Instant", "/mcp", CALL, CALL),
    Route("POST /step", "Instant", None, POST, POST),
)


@dataclass(frozen=True, slots=True)
class Result:
    idle_mib: float
    peak_mib: float
    steps: int
    """Steps of the client that reads its replies."""
    slowest_s: float


@contextmanager
def serving(environment: str, workers: int) -> Iterator[tuple[int, int]]:
    """A server on a free port of loopback; yields its process id and its port."""
    command = [sys.executable, "-m", "ludus", "serve", f"large_observations:{environment}"]
    process = subprocess.Popen(
        [*command, "--port", "0", "--workers", str(workers)],
        cwd=HERE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "COLUMNS": "200", "PYTHONUNBUFFERED": "1"},
    )
    try:
        assert process.stdout is not None
        address = re.search(r"http://127\.0\.0\.1:(\d+)", process.stdout.readline())
        if address is None:
            sys.exit("The server did not start.")
        yield process.pid, int(address.group(1))
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def resident_mib(pid: int) -> float:
    """Resident memory of a process and of all its children."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return 0.0
    own = next((int(line.split()[1]) / 1024 for line in lines if line.startswith("VmRSS:")), 0.0)
    return own + sum(resident_mib(int(child)) for child in children)


class SilentClient:
    """Sends its requests as fast as the server takes them, and reads nothing."""

    def __init__(self, port: int, route: Route, requests: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port))
        if route.path is None:
            self._unsent = b"".join([_post(port, route.request)] * requests)
        else:
            self._socket.sendall(_upgrade(port, route.path))
            while b"\r\n\r\n" not in self._socket.recv(65536):
                pass
            self._unsent = b"".join([_frame(route.first), *[_frame(route.request)] * requests])
        self._socket.setblocking(False)

    def send_some(self) -> None:
        try:
            while self._unsent:
                self._unsent = self._unsent[self._socket.send(self._unsent) :]
        except BlockingIOError:
            pass
        except OSError:
            self._unsent = b""  # The server has closed the connection.

    def close(self) -> None:
        self._socket.close()


def _upgrade(port: int, path: str) -> bytes:
    key = base64.b64encode(os.urandom(16)).decode()
    return (
        f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nUpgrade: websocket\r\n"
        f"Connection: Upgrade\r\nSec-WebSocket-Key: {key}\r\nSec-WebSocket-Version: 13\r\n\r\n"
    ).encode()


def _post(port: int, body: bytes) -> bytes:
    head = (
        f"POST /step HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


def _frame(payload: bytes) -> bytes:
    """A masked text frame; with a mask of zeros the payload stays as it is."""
    assert len(payload) < 126
    return bytes((0x81, 0x80 | len(payload), 0, 0, 0, 0)) + payload


def measure(route: Route, *, clients: int, requests: int, seconds: float, workers: int) -> Result:
    with serving(route.environment, workers) as (pid, port), ExitStack() as stack:
        idle = peak = resident_mib(pid)
        reader = stack.enter_context(connect(f"ws://127.0.0.1:{port}/ws", max_size=None))
        silent = [SilentClient(port, route, requests) for _ in range(clients)]
        for client in silent:
            stack.callback(client.close)
        steps, slowest = 0, 0.0
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and peak < STOP_AT_MIB:
            for client in silent:
                client.send_some()
            began = time.monotonic()
            for request in (RESET, STEP):
                reader.send(request.decode())
                reader.recv(timeout=60)
            steps += 1
            slowest = max(slowest, time.monotonic() - began)
            peak = max(peak, resident_mib(pid))
            time.sleep(SAMPLE_INTERVAL_S)
        return Result(idle, peak, steps, slowest)


def report(results: Sequence[tuple[Route, Result]]) -> None:
    table = Table(title="Resident memory of all processes of the server, MiB")
    for heading in ("route", "idle", "peak", "steps of the reading client", "slowest, s"):
        table.add_column(heading, justify="left" if heading == "route" else "right")
    for route, result in results:
        table.add_row(
            route.name,
            f"{result.idle_mib:.0f}",
            f"{result.peak_mib:.0f}",
            str(result.steps),
            f"{result.slowest_s:.2f}",
        )
    Console(width=110).print(table)


def main() -> int:
    parser = argparse.ArgumentParser(description="Clients that never read, against `ludus serve`.")
    parser.add_argument("--clients", type=int, default=20)
    parser.add_argument("--requests", type=int, default=2000, help="of one megabyte, per client")
    parser.add_argument("--seconds", type=float, default=15.0, help="length of one measurement")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--limit", type=float, default=500.0, help="MiB that the server may take")
    given = parser.parse_args()
    results = [
        (
            route,
            measure(
                route,
                clients=given.clients,
                requests=given.requests,
                seconds=given.seconds,
                workers=given.workers,
            ),
        )
        for route in ROUTES
    ]
    report(results)
    worst = max(result.peak_mib for _, result in results)
    print(f"{'MET' if worst < given.limit else 'MISSED'}: at most {worst:.0f} MiB.")
    return 0 if worst < given.limit else 1


if __name__ == "__main__":
    sys.exit(main())
