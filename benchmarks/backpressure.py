"""Server memory when clients request large observations and never read the replies.

    python benchmarks/backpressure.py [--clients 20] [--requests 2000] [--seconds 15] [--workers 1]

Every client sends all its requests at once, over each route in turn: WebSocket `/ws` with an
environment that is stepped on the event loop and with one that is stepped in threads, and
pipelined `POST /step`. Meanwhile another client steps a session and reads its replies,
and the resident memory of all server processes is sampled. Exit code 1 when it exceeds the limit.
Everything stays on 127.0.0.1.
"""

from __future__ import annotations

import argparse
import os
import re
import signal
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

TESTS = Path(__file__).parents[1] / "tests"
sys.path.insert(0, str(TESTS))

from serve.silent_client import SilentClient, resident_mib  # noqa: E402

STEP = b'{"type":"step","data":{}}'
RESET = b'{"type":"reset"}'
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
    Route("/ws, event loop", "Large", "/ws", RESET, STEP),
    Route("/ws, threads", "LargeInThreads", "/ws", RESET, STEP),
    Route("POST /step", "Large", None, POST, POST),
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
    command = [sys.executable, "-m", "ludus", "serve", f"serve.silent_client:{environment}"]
    process = subprocess.Popen(
        [*command, "--port", "0", "--workers", str(workers)],
        cwd=TESTS,
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


def send_all(client: SilentClient, route: Route, requests: int) -> None:
    """Send all requests at once; what the server does not accept yet is left to `send_rest`."""
    if route.path is None:
        client.send_posts("/step", route.request, requests)
    else:
        client.upgrade(route.path)
        client.send_frames([route.first, *[route.request] * requests])


def measure(route: Route, *, clients: int, requests: int, seconds: float, workers: int) -> Result:
    with serving(route.environment, workers) as (pid, port), ExitStack() as stack:
        idle = peak = resident_mib(pid)
        reader = stack.enter_context(connect(f"ws://127.0.0.1:{port}/ws", max_size=None))
        silent = [
            stack.enter_context(SilentClient(f"http://127.0.0.1:{port}")) for _ in range(clients)
        ]
        for client in silent:
            send_all(client, route, requests)
        steps, slowest = 0, 0.0
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and peak < STOP_AT_MIB:
            for client in silent:
                client.send_rest()
            start = time.monotonic()
            for request in (RESET, STEP):
                reader.send(request.decode())
                reader.recv(timeout=60)
            steps += 1
            slowest = max(slowest, time.monotonic() - start)
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
    args = parser.parse_args()
    results = [
        (
            route,
            measure(
                route,
                clients=args.clients,
                requests=args.requests,
                seconds=args.seconds,
                workers=args.workers,
            ),
        )
        for route in ROUTES
    ]
    report(results)
    worst = max(result.peak_mib for _, result in results)
    print(f"{'MET' if worst < args.limit else 'MISSED'}: at most {worst:.0f} MiB.")
    return 0 if worst < args.limit else 1


if __name__ == "__main__":
    sys.exit(main())
