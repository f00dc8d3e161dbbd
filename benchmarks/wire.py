"""Steps per second over the OpenEnv wire: OpenEnv's own server against Ludus's, in one run.

    python benchmarks/wire.py [--seconds 5] [--rounds 3] [--json FILE] [--no-assert]

The same echo environment and the same load for all; each server is a process of its own with one
worker, started the way its users start it. Servers take turns and the median of the rounds counts,
because machines are noisy. Exit code 1 when Ludus misses its target at 64 sessions. How the load
is made is `wire_load.py`'s business.
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
    # What `pip install openenv` gives: its requirements have neither uvloop nor httptools.
    BASELINE: [*OPENENV, "--loop", "asyncio", "--http", "h11", "--port"],
    UVLOOP: [*OPENENV, "--port"],
    THREADED: [LUDUS, "serve", "echo_openenv:EchoEnv", "--port"],
    SAME: [LUDUS, "serve", "echo_openenv:CheapEchoEnv", "--port"],
    NATIVE: [LUDUS, "serve", "echo_ludus:EchoEnv", "--port"],
}
IMPORTS = ("openenv.core.env_server.http_server", "ludus", "ludus.serve.app")

JUDGED_AT = 64
LEAST_STEPS = 5.0
MOST_P99 = 0.2
_START_TIMEOUT, _STOP_TIMEOUT = 120.0, 20.0
_SETTLE = 0.5
"""Seconds for a server to clear away its sessions before the next one is measured."""


@dataclass(frozen=True, slots=True)
class Server:
    name: str
    port: int
    pid: int
    idle_mib: float


@dataclass(frozen=True, slots=True)
class Row:
    """One server at one number of sessions: the medians of its rounds."""

    server: str
    sessions: int
    steps_per_second: float
    p50_ms: float
    p99_ms: float
    client_cpu: float
    server_cpu: float
    cpu_us_per_step: float
    """What a step costs the server; says more than steps/s where other work takes the cores."""
    server_mib: float
    errors: int
    first_error: str | None


class BenchmarkFailed(Exception):
    """A server or the load did not do what it was started for."""


@contextmanager
def running(name: str) -> Iterator[Server]:
    """Start a server on a free port of loopback, and stop it in the end."""
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
    deadline = time.monotonic() + _START_TIMEOUT
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
        process.wait(_STOP_TIMEOUT)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def load(server: Server, sessions: int, seconds: float) -> Load:
    """Measure one server once."""
    command = [sys.executable, str(HERE / "wire_load.py"), "--port", str(server.port)]
    command += ["--pid", str(server.pid), "--sessions", str(sessions), "--seconds", str(seconds)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=seconds + 180)
    if done.returncode:
        raise BenchmarkFailed(f"{sessions} sessions on {server.name}:\n{done.stderr[-2000:]}")
    time.sleep(_SETTLE)
    measured: Load = json.loads(done.stdout)
    return measured


def measure(
    servers: Sequence[Server], counts: Sequence[int], *, rounds: int, seconds: float
) -> list[Row]:
    """Every server at every number of sessions, taking turns."""
    taken: dict[tuple[str, int], list[Load]] = {}
    for number in range(1, rounds + 1):
        for sessions in counts:
            for server in servers:
                one = load(server, sessions, seconds)
                taken.setdefault((server.name, sessions), []).append(one)
                print(
                    f"round {number}/{rounds}  {sessions:4} sessions  {server.name:18}"
                    f"{one['steps_per_second']:8.0f} steps/s",
                    file=sys.stderr,
                )
    return [
        _middle(name, sessions, taken[name, sessions])
        for sessions in counts
        for name in (server.name for server in servers)
    ]


def _middle(server: str, sessions: int, loads: Sequence[Load]) -> Row:
    return Row(
        server=server,
        sessions=sessions,
        steps_per_second=median(one["steps_per_second"] for one in loads),
        p50_ms=median(one["p50_ms"] for one in loads),
        p99_ms=median(one["p99_ms"] for one in loads),
        client_cpu=median(one["client_cpu"] for one in loads),
        server_cpu=median(one["server_cpu"] for one in loads),
        cpu_us_per_step=median(
            ratio(one["server_cpu"], one["steps_per_second"]) * 1e6 for one in loads
        ),
        server_mib=median(one["server_mib"] for one in loads),
        errors=sum(one["errors"] for one in loads),
        first_error=next((one["first_error"] for one in loads if one["errors"]), None),
    )


def import_seconds(module: str) -> float:
    """Time of an import in a fresh interpreter, without the start of the interpreter itself."""
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


_NUMBERS = (
    *("steps/s", "ratio", "p50 ms", "p99 ms", "p99 ratio"),
    *("CPU us/step", "server CPU", "client CPU", "errors"),
)


def steps_table(rows: Sequence[Row]) -> Table:
    table = Table(title="Steps over the wire (median of rounds; ratios to OpenEnv)")
    table.add_column("sessions", justify="right")
    table.add_column("server")
    for heading in _NUMBERS:
        table.add_column(heading, justify="right")
    for row in rows:
        base = find(rows, BASELINE, row.sessions)
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
        held = find(rows, server.name, most).server_mib
        table.add_row(server.name, f"{server.idle_mib:.0f}", f"{held:.0f}")
    return table


def imports_table(seconds: Mapping[str, float]) -> Table:
    table = Table(title="Import time, ms (median of 3)")
    table.add_column("module")
    table.add_column("ms", justify="right")
    for module, spent in seconds.items():
        table.add_row(module, f"{spent * 1000:.0f}")
    return table


def find(rows: Sequence[Row], server: str, sessions: int) -> Row:
    return next(row for row in rows if (row.server, row.sessions) == (server, sessions))


def ratio(part: float, whole: float) -> float:
    """Not a number where nothing was measured: the verdict says why."""
    return part / whole if whole else float("nan")


def verdict(rows: Sequence[Row]) -> tuple[bool, str]:
    """Whether the target is met, and the sentence that says so."""
    broken = next((row for row in rows if row.errors), None)
    if broken is not None:
        where = f"{broken.server} at {broken.sessions} sessions"
        return False, f"FAILED: {broken.errors} wrong replies from {where}: {broken.first_error}"
    if JUDGED_AT not in {row.sessions for row in rows}:
        return True, f"No verdict: {JUDGED_AT} sessions were not measured."
    base, ours = find(rows, BASELINE, JUDGED_AT), find(rows, SAME, JUDGED_AT)
    steps = ratio(ours.steps_per_second, base.steps_per_second)
    p99 = ratio(ours.p99_ms, base.p99_ms)
    met = steps >= LEAST_STEPS and p99 <= MOST_P99
    return met, (
        f"{'MET' if met else 'MISSED'}: at {JUDGED_AT} sessions Ludus does {steps:.2f}x the steps "
        f"of OpenEnv (target {LEAST_STEPS:g}x) at {p99:.2f}x its p99 (target {MOST_P99:g}x)."
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


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="OpenEnv's server against Ludus's, on one wire.")
    parser.add_argument("--seconds", type=float, default=5.0, help="length of one measurement")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--sessions", type=int, nargs="+", default=[1, 64, 256])
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all numbers here")
    parser.add_argument(
        "--assert",
        dest="judge",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="exit with 1 when the target is missed",
    )
    return parser.parse_args()


def main() -> int:
    given = _arguments()
    # Told to stop, it leaves through the `with` below, which stops the servers.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    facts = machine()
    imports = {module: import_seconds(module) for module in IMPORTS}
    with ExitStack() as stack:
        servers = [stack.enter_context(running(name)) for name in COMMANDS]
        rows = measure(servers, given.sessions, rounds=given.rounds, seconds=given.seconds)
    met, sentence = verdict(rows)
    report(Console(width=max(130, Console().width)), facts, servers, rows, imports)
    print(sentence)
    if given.json is not None:
        numbers: dict[str, Any] = {
            "machine": facts,
            "rounds": given.rounds,
            "seconds": given.seconds,
            "steps": [_fields(row) for row in rows],
            "idle_mib": {server.name: server.idle_mib for server in servers},
            "import_seconds": imports,
            "verdict": {"met": met, "sentence": sentence},
        }
        given.json.write_text(json.dumps(numbers, indent=2) + "\n")
    return 0 if met or not given.judge else 1


def _fields(row: Row) -> dict[str, Any]:
    return {name: getattr(row, name) for name in Row.__slots__}


if __name__ == "__main__":
    try:
        sys.exit(main())
    except BenchmarkFailed as error:
        sys.exit(str(error))
