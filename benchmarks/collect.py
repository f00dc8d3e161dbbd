"""Episodes per second of `openenv collect` and `ludus collect`, measured in one run.

    python benchmarks/collect.py [--latency 0.2] [--concurrency 128] [--json FILE] [--no-assert]

Both call the same stub of the chat API, which replies after the latency, and play
reasoning_gym:chain_sum: OpenEnv on a Ludus server, Ludus in process and on the same server. The
time is taken by the stub, from the first request to the last reply, so that imports do not count;
the time of the whole command is also shown. Exit code 1 when Ludus misses its targets.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

HERE = Path(__file__).parent
BIN = Path(sys.executable).parent
STUB = HERE.parent / "tests" / "chat_stub.py"
SPEC = "reasoning_gym:chain_sum"
CONFIG = '{"min_terms": 2, "max_terms": 3, "min_digits": 2, "max_digits": 2}'

MIN_SPEEDUP = 100.0
"""Over OpenEnv."""
MIN_IDEAL_FRACTION = 0.9
MAX_MEMORY_GROWTH = 1.1
"""Peak memory with four times as many episodes, as a ratio."""


@dataclass(frozen=True, slots=True)
class Row:
    """The measurements of one command."""

    name: str
    episodes: int
    rate: float
    """Episodes per second, by the stub's clock."""
    command_seconds: float
    cpu_ms: float
    """CPU time of the collecting process per episode, including its start."""
    peak_mib: float


@contextmanager
def start_server(command: list[str]) -> Iterator[str]:
    """Start a server that prints its URL in its first line; yields the URL."""
    environment = {**os.environ, "PYTHONUNBUFFERED": "1", "COLUMNS": "200"}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
    assert process.stdout is not None
    try:
        match = re.search(r"http://[\d.]+:\d+", process.stdout.readline())
        if match is None:
            raise SystemExit(f"{command} did not start")
        yield match.group()
    finally:
        process.terminate()
        process.wait(30)
        process.stdout.close()


def measure(name: str, episodes: int, command: list[str], stub: str, **env: str) -> Row:
    """Run a command, and read the time of its requests from the stub."""
    _get_json(f"{stub}/stub/clear")
    start = time.monotonic()
    with tempfile.TemporaryFile("w+") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, env={**os.environ, **env})
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            log.seek(0)
            raise SystemExit(f"{name} failed:\n{log.read()[-3000:]}")
    seconds = time.monotonic() - start
    times = _get_json(f"{stub}/stub/times")
    assert times["replies"] == episodes, times
    return Row(
        name=name,
        episodes=episodes,
        rate=episodes / (times["last_reply"] - times["first_request"]),
        command_seconds=seconds,
        cpu_ms=1000 * (usage.ru_utime + usage.ru_stime) / episodes,
        peak_mib=usage.ru_maxrss / 1024,
    )


def _get_json(url: str) -> Mapping[str, Any]:
    with urllib.request.urlopen(url, timeout=10) as response:
        parsed: dict[str, Any] = json.load(response)
        return parsed


def openenv(episodes: int, stub: str, server: str, out: Path) -> Row:
    command = [str(BIN / "openenv"), "collect", SPEC, "--base-url", server, "--model", "stub"]
    command += ["--llm-endpoint", stub, "--num-episodes", str(episodes), "--max-tokens", "64"]
    command += ["--dataset-config", CONFIG, "--output-dir", str(out)]
    variables = {"PYTHONPATH": str(HERE / "openenv_side"), "OPENAI_API_KEY": "none"}
    return measure("openenv collect", episodes, command, stub, **variables)


def ludus(name: str, episodes: int, concurrency: int, stub: str, out: Path, *options: str) -> Row:
    command = [str(BIN / "ludus"), "collect", SPEC, "--provider", "openai", "--model", "stub"]
    command += ["--llm-endpoint", stub, "--num-episodes", str(episodes), "--max-tokens", "64"]
    command += ["--dataset-config", CONFIG, "--output-dir", str(out), *options]
    command += ["--concurrency", str(concurrency)]
    return measure(name, episodes, command, stub, OPENAI_API_KEY="none")


def main() -> int:
    args = _parse_args()
    with tempfile.TemporaryDirectory() as folder, start_server(_stub_command(args.latency)) as stub:
        out = Path(folder)
        with start_server([str(BIN / "ludus"), "serve", SPEC, "--port", "0"]) as server:
            rows = [openenv(args.baseline, stub, server, out / "openenv")]
            wire = ("--base-url", server)
            concurrency, few, many = args.concurrency, args.episodes, 4 * args.episodes
            rows += [
                ludus("ludus collect, over the wire", few, concurrency, stub, out / "wire", *wire),
                ludus("ludus collect, in process", few, concurrency, stub, out / "few"),
                ludus("ludus collect, in process", many, concurrency, stub, out / "many"),
            ]
    ideal = args.concurrency / args.latency
    _print_table(rows, ideal)
    if args.json:
        results = {"ideal": ideal, "rows": [asdict(row) for row in rows]}
        args.json.write_text(json.dumps(results, indent=2))
    return 0 if args.no_assert else _check_targets(rows, ideal)


def _stub_command(latency: float) -> list[str]:
    return [sys.executable, str(STUB), "--port", "0", "--latency", str(latency)]


def _parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--latency", type=float, default=0.2)
    parser.add_argument("--concurrency", type=int, default=128)
    parser.add_argument("--episodes", type=int, default=2000)
    parser.add_argument("--baseline", type=int, default=30, help="episodes of OpenEnv")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--no-assert", action="store_true")
    return parser.parse_args()


def _print_table(rows: list[Row], ideal: float) -> None:
    out = Console(highlight=False, width=120)
    table = Table(box=None, header_style="bold")
    for name in (
        "command",
        "episodes",
        "episodes/s",
        "ratio",
        "of ideal",
        "CPU ms",
        "peak MiB",
        "whole s",
    ):
        table.add_column(name, justify="left" if name == "command" else "right")
    for row in rows:
        table.add_row(
            row.name,
            f"{row.episodes:,}",
            f"{row.rate:,.1f}",
            f"{row.rate / rows[0].rate:.1f}",
            f"{row.rate / ideal:.3f}" if row is not rows[0] else "",
            f"{row.cpu_ms:.2f}",
            f"{row.peak_mib:.0f}",
            f"{row.command_seconds:.1f}",
        )
    out.print(table)
    names = ", ".join(f"{name} {version(name)}" for name in ("openenv", "aiohttp", "pydantic"))
    out.print(f"ideal {ideal:,.0f} episodes/s; Python {platform.python_version()}, {names}")


def _check_targets(rows: list[Row], ideal: float) -> int:
    """The exit code; prints the targets that are missed."""
    baseline, _, few, many = rows
    speedup, fraction = few.rate / baseline.rate, few.rate / ideal
    growth = many.peak_mib / few.peak_mib
    missed = []
    if speedup < MIN_SPEEDUP:
        missed.append(f"speedup over OpenEnv: {speedup:.1f}, target {MIN_SPEEDUP:g}")
    if fraction < MIN_IDEAL_FRACTION:
        missed.append(f"fraction of the ideal: {fraction:.3f}, target {MIN_IDEAL_FRACTION:g}")
    if growth > MAX_MEMORY_GROWTH:
        missed.append(f"memory growth: {growth:.3f}, target {MAX_MEMORY_GROWTH:g}")
    for message in missed:
        print(message, file=sys.stderr)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
