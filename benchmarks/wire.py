"""Steps per second over the OpenEnv protocol: OpenEnv's server and Ludus's, in one run.

    python benchmarks/wire.py [--seconds 5] [--rounds 3] [--json FILE] [--no-assert]

All serve the same echo environment under the same load (`wire_load.py`). Each server is a process
with one worker, started as users start it. Servers take turns, and the median of the rounds counts,
because machines are noisy. Exit code 1 when Ludus misses its target at 64 sessions.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from benchmarks.wire_load import Load

HERE = Path(__file__).parent
LUDUS = str(Path(sys.executable).with_name("ludus"))

BASELINE, UVLOOP, THREADED = "OpenEnv", "OpenEnv + uvloop", "Ludus, threaded"
SAME, NATIVE = "Ludus, same class", "Ludus, own class"
OPENENV = [sys.executable, "-m", "uvicorn", "--factory", "echo_openenv:app"]
COMMANDS = {
    # As after `pip install openenv`, which installs neither uvloop nor httptools.
    BASELINE: [*OPENENV, "--loop", "asyncio", "--http", "h11", "--port"],
    UVLOOP: [*OPENENV, "--port"],
    THREADED: [LUDUS, "serve", "echo_openenv:EchoEnv", "--port"],
    SAME: [LUDUS, "serve", "echo_openenv:CheapEchoEnv", "--port"],
    NATIVE: [LUDUS, "serve", "echo_ludus:EchoEnv", "--port"],
}
IMPORTS = ("openenv.core.env_server.http_server", "ludus", "ludus.serve.app")

TARGET_SESSIONS = 64
MIN_STEPS_RATIO = 5.0
MAX_P99_RATIO = 0.2
_START_TIMEOUT_S, _STOP_TIMEOUT_S = 120.0, 20.0
_COOL_DOWN_S = 0.5
"""Time for a server to close its sessions before the next measurement."""


@dataclass(frozen=True, slots=True)
class Server:
    name: str
    port: int
    pid: int
    idle_mib: float


@dataclass(frozen=True, slots=True)
class Row:
    """Medians over the rounds, for one server and number of sessions."""

    server: str
    sessions: int
    steps_per_second: float
    p50_ms: float
    p99_ms: float
    client_cpu: float
    server_cpu: float
    cpu_us_per_step: float
    """CPU time of the server per step; more reliable than steps/s on a busy machine."""
    server_mib: float
    errors: int
    first_error: str | None


class BenchmarkFailed(Exception):
    """A server did not start, or the load client failed."""


@contextmanager
def running(name: str) -> Iterator[Server]:
    """Start a server on a free loopback port, and stop it at the end."""
    port = _free_port()
    with tempfile.TemporaryFile("w+") as log:
        process = subprocess.Popen([*COMMANDS[name], str(port)], cwd=HERE, stdout=log, stderr=log)
        try:
            if not _wait_until_healthy(process, port):
                log.seek(0)
                raise BenchmarkFailed(f"{name} did not start:\n{log.read()[-2000:]}")
            yield Server(name, port, process.pid, _resident_mib(process.pid))
        finally:
            _stop(process)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _wait_until_healthy(process: subprocess.Popen[bytes], port: int) -> bool:
    deadline = time.monotonic() + _START_TIMEOUT_S
    while process.poll() is None and time.monotonic() < deadline:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5):
                return True
        except OSError:
            time.sleep(0.1)
    return False


def _resident_mib(pid: int) -> float:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmRSS:"))


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(_STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def run_load(server: Server, sessions: int, seconds: float) -> Load:
    """One measurement of one server."""
    command = [sys.executable, str(HERE / "wire_load.py"), "--port", str(server.port)]
    command += ["--pid", str(server.pid), "--sessions", str(sessions), "--seconds", str(seconds)]
    process = subprocess.run(command, capture_output=True, text=True, timeout=seconds + 180)
    if process.returncode:
        raise BenchmarkFailed(f"{sessions} sessions on {server.name}:\n{process.stderr[-2000:]}")
    time.sleep(_COOL_DOWN_S)
    measured: Load = json.loads(process.stdout)
    return measured


def measure(
    servers: Sequence[Server], counts: Sequence[int], *, rounds: int, seconds: float
) -> list[Row]:
    """Measure every server at every number of sessions; servers take turns."""
    results: dict[tuple[str, int], list[Load]] = {}
    for number in range(1, rounds + 1):
        for sessions in counts:
            for server in servers:
                result = run_load(server, sessions, seconds)
                results.setdefault((server.name, sessions), []).append(result)
                print(
                    f"round {number}/{rounds}  {sessions:4} sessions  {server.name:18}"
                    f"{result['steps_per_second']:8.0f} steps/s",
                    file=sys.stderr,
                )
    return [
        _median_row(name, sessions, results[name, sessions])
        for sessions in counts
        for name in (server.name for server in servers)
    ]


def _median_row(server: str, sessions: int, loads: Sequence[Load]) -> Row:
    return Row(
        server=server,
        sessions=sessions,
        steps_per_second=median(load["steps_per_second"] for load in loads),
        p50_ms=median(load["p50_ms"] for load in loads),
        p99_ms=median(load["p99_ms"] for load in loads),
        client_cpu=median(load["client_cpu"] for load in loads),
        server_cpu=median(load["server_cpu"] for load in loads),
        cpu_us_per_step=median(
            ratio(load["server_cpu"], load["steps_per_second"]) * 1e6 for load in loads
        ),
        server_mib=median(load["server_mib"] for load in loads),
        errors=sum(load["errors"] for load in loads),
        first_error=next((load["first_error"] for load in loads if load["errors"]), None),
    )


def import_seconds(module: str) -> float:
    """Time of an import in a fresh interpreter, without the interpreter's start."""
    code = f"import time; t = time.perf_counter(); import {module}; print(time.perf_counter() - t)"
    runs = [
        subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120
        )
        for _ in range(3)
    ]
    return median(float(run.stdout.splitlines()[-1]) for run in runs)


def machine() -> dict[str, str]:
    info = Path("/proc/cpuinfo").read_text().splitlines()
    models = [line.partition(":")[2].strip() for line in info if line.startswith("model name")]
    packages = ("openenv", "ludus", "uvicorn", "websockets", "uvloop", "pydantic")
    return {
        "cpu": models[0] if models else platform.machine(),
        "cores": str(os.cpu_count()),
        "load average": " ".join(f"{part:.2f}" for part in os.getloadavg()),
        "python": platform.python_version(),
        **{name: version(name) for name in packages},
    }


_COLUMNS = (
    *("steps/s", "ratio", "p50 ms", "p99 ms", "p99 ratio"),
    *("CPU us/step", "server CPU", "client CPU", "errors"),
)


def steps_table(rows: Sequence[Row]) -> Table:
    table = Table(title="Steps over the wire (median of rounds; ratios to OpenEnv)")
    table.add_column("sessions", justify="right")
    table.add_column("server")
    for heading in _COLUMNS:
        table.add_column(heading, justify="right")
    for row in rows:
        base = find_row(rows, BASELINE, row.sessions)
        table.add_row(
            str(row.sessions),
            row.server,
            f"{row.steps_per_second:,.0f}",
            f"{ratio(row.steps_per_second, base.steps_per_second):.2f}x",
            f"{row.p50_ms:.2f}",
            f"{row.p99_ms:.2f}",
            f"{ratio(row.p99_ms, base.p99_ms):.2f}x",
            f"{row.cpu_us_per_step:.0f}",
            f"{row.server_cpu:.0%}",
            f"{row.client_cpu:.0%}",
            str(row.errors),
            end_section=row.server == NATIVE,
        )
    return table


def memory_table(servers: Sequence[Server], rows: Sequence[Row]) -> Table:
    most = max(row.sessions for row in rows)
    table = Table(title="Resident memory, MiB")
    table.add_column("server")
    table.add_column("idle after start", justify="right")
    table.add_column(f"with {most} sessions", justify="right")
    for server in servers:
        loaded = find_row(rows, server.name, most).server_mib
        table.add_row(server.name, f"{server.idle_mib:.0f}", f"{loaded:.0f}")
    return table


def imports_table(seconds: Mapping[str, float]) -> Table:
    table = Table(title="Import time, ms (median of 3)")
    table.add_column("module")
    table.add_column("ms", justify="right")
    for module, import_s in seconds.items():
        table.add_row(module, f"{import_s * 1000:.0f}")
    return table


def find_row(rows: Sequence[Row], server: str, sessions: int) -> Row:
    return next(row for row in rows if (row.server, row.sessions) == (server, sessions))


def ratio(part: float, whole: float) -> float:
    """NaN if nothing was measured."""
    return part / whole if whole else float("nan")


def verdict(rows: Sequence[Row]) -> tuple[bool, str]:
    """Whether the target is met, and a sentence about it."""
    failed = next((row for row in rows if row.errors), None)
    if failed is not None:
        where = f"{failed.server} at {failed.sessions} sessions"
        return False, f"FAILED: {failed.errors} wrong replies from {where}: {failed.first_error}"
    if TARGET_SESSIONS not in {row.sessions for row in rows}:
        return True, f"No verdict: {TARGET_SESSIONS} sessions were not measured."
    base, ludus = find_row(rows, BASELINE, TARGET_SESSIONS), find_row(rows, SAME, TARGET_SESSIONS)
    steps = ratio(ludus.steps_per_second, base.steps_per_second)
    p99 = ratio(ludus.p99_ms, base.p99_ms)
    met = steps >= MIN_STEPS_RATIO and p99 <= MAX_P99_RATIO
    return met, (
        f"{'MET' if met else 'MISSED'}: at {TARGET_SESSIONS} sessions Ludus does {steps:.2f}x the "
        f"steps of OpenEnv (target {MIN_STEPS_RATIO:g}x) at {p99:.2f}x its p99 "
        f"(target {MAX_P99_RATIO:g}x)."
    )


def report(
    console: Console,
    facts: Mapping[str, str],
    servers: Sequence[Server],
    rows: Sequence[Row],
    imports: Mapping[str, float],
) -> None:
    console.print("  ".join(f"{name}: {value}" for name, value in facts.items()), soft_wrap=True)
    console.print(steps_table(rows))
    busiest = max(row.client_cpu for row in rows)
    console.print(
        f"The load client used at most {busiest:.0%} of a core (at 100% it is the bottleneck).\n"
        "A server CPU well below 100% at 64 or more sessions means that other work took the core."
    )
    console.print(memory_table(servers, rows))
    console.print(imports_table(imports))


def _parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="OpenEnv's server and Ludus's under the same load."
    )
    parser.add_argument("--seconds", type=float, default=5.0, help="length of one measurement")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--sessions", type=int, nargs="+", default=[1, 64, 256])
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all results here")
    parser.add_argument(
        "--assert",
        dest="judge",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="exit with 1 when the target is missed",
    )
    return parser.parse_args()


def main() -> int:
    args = _parse_args()
    # Exit through the `with` below on SIGTERM, which stops the servers.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    facts = machine()
    imports = {module: import_seconds(module) for module in IMPORTS}
    with ExitStack() as stack:
        servers = [stack.enter_context(running(name)) for name in COMMANDS]
        rows = measure(servers, args.sessions, rounds=args.rounds, seconds=args.seconds)
    met, sentence = verdict(rows)
    report(Console(width=max(130, Console().width)), facts, servers, rows, imports)
    print(sentence)
    if args.json is not None:
        results: dict[str, Any] = {
            "machine": facts,
            "rounds": args.rounds,
            "seconds": args.seconds,
            "steps": [_fields(row) for row in rows],
            "idle_mib": {server.name: server.idle_mib for server in servers},
            "import_seconds": imports,
            "verdict": {"met": met, "sentence": sentence},
        }
        args.json.write_text(json.dumps(results, indent=2) + "\n")
    return 0 if met or not args.judge else 1


def _fields(row: Row) -> dict[str, Any]:
    return {name: getattr(row, name) for name in Row.__slots__}


if __name__ == "__main__":
    try:
        sys.exit(main())
    except BenchmarkFailed as error:
        sys.exit(str(error))
