"""Episodes per second: `openenv collect` beside `ludus collect`, in one run.

    python benchmarks/collect.py [--latency 0.2] [--concurrency 128] [--json FILE] [--no-assert]

Both ask the same stub of the chat API, which answers after the latency, and play
reasoning_gym:chain_sum: OpenEnv on a server of ours, Ludus in process and on the same server. The
stub's own clock counts, from the first request to the last reply, so that neither pays for its
imports; what the whole command took stands beside it. Exit code 1 when Ludus misses its targets.
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

LEAST_RATIO = 100.0
LEAST_SHARE = 0.9
MOST_GROWTH = 1.1
"""How much more memory four times as many episodes may take."""


@dataclass(frozen=True, slots=True)
class Row:
    """One command, run to its end."""

    name: str
    episodes: int
    rate: float
    """Episodes a second, by the stub's clock."""
    command_seconds: float
    cpu_ms: float
    """CPU time of the collecting process for each episode, its start-up included."""
    peak_mib: float


@contextmanager
def started(command: list[str]) -> Iterator[str]:
    """A server that says its address in its first line."""
    environment = {**os.environ, "PYTHONUNBUFFERED": "1", "COLUMNS": "200"}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
    assert process.stdout is not None
    try:
        found = re.search(r"http://[\d.]+:\d+", process.stdout.readline())
        if found is None:
            raise SystemExit(f"{command} did not start")
        yield found.group()
    finally:
        process.terminate()
        process.wait(30)
        process.stdout.close()


def measured(name: str, episodes: int, command: list[str], stub: str, **env: str) -> Row:
    """Run a command, and ask the stub how long it was kept busy."""
    _ask(f"{stub}/stub/clear")
    began = time.monotonic()
    with tempfile.TemporaryFile("w+") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, env={**os.environ, **env})
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            log.seek(0)
            raise SystemExit(f"{name} failed:\n{log.read()[-3000:]}")
    seconds = time.monotonic() - began
    seen = _ask(f"{stub}/stub/times")
    assert seen["replies"] == episodes, seen
    return Row(
        name=name,
        episodes=episodes,
        rate=episodes / (seen["last_reply"] - seen["first_request"]),
        command_seconds=seconds,
        cpu_ms=1000 * (used.ru_utime + used.ru_stime) / episodes,
        peak_mib=used.ru_maxrss / 1024,
    )


def _ask(url: str) -> Mapping[str, Any]:
    with urllib.request.urlopen(url, timeout=10) as reply:
        answer: dict[str, Any] = json.load(reply)
        return answer


def openenv(episodes: int, stub: str, server: str, out: Path) -> Row:
    command = [str(BIN / "openenv"), "collect", SPEC, "--base-url", server, "--model", "stub"]
    command += ["--llm-endpoint", stub, "--num-episodes", str(episodes), "--max-tokens", "64"]
    command += ["--dataset-config", CONFIG, "--output-dir", str(out)]
    path = {"PYTHONPATH": str(HERE / "openenv_side"), "OPENAI_API_KEY": "none"}
    return measured("openenv collect", episodes, command, stub, **path)


def ludus(name: str, episodes: int, concurrency: int, stub: str, out: Path, *more: str) -> Row:
    command = [str(BIN / "ludus"), "collect", SPEC, "--provider", "openai", "--model", "stub"]
    command += ["--llm-endpoint", stub, "--num-episodes", str(episodes), "--max-tokens", "64"]
    command += ["--dataset-config", CONFIG, "--output-dir", str(out), *more]
    command += ["--concurrency", str(concurrency)]
    return measured(name, episodes, command, stub, OPENAI_API_KEY="none")


def main() -> int:
    options = _options()
    with tempfile.TemporaryDirectory() as folder, started(_stub(options.latency)) as stub:
        out = Path(folder)
        with started([str(BIN / "ludus"), "serve", SPEC, "--port", "0"]) as server:
            rows = [openenv(options.baseline, stub, server, out / "openenv")]
            wire = ("--base-url", server)
            at, few, many = options.concurrency, options.episodes, 4 * options.episodes
            rows += [
                ludus("ludus collect, over the wire", few, at, stub, out / "wire", *wire),
                ludus("ludus collect, in process", few, at, stub, out / "few"),
                ludus("ludus collect, in process", many, at, stub, out / "many"),
            ]
    ideal = options.concurrency / options.latency
    _print(rows, ideal)
    if options.json:
        facts = {"ideal": ideal, "rows": [asdict(row) for row in rows]}
        options.json.write_text(json.dumps(facts, indent=2))
    return 0 if options.no_assert else _judged(rows, ideal)


def _stub(latency: float) -> list[str]:
    return [sys.executable, str(STUB), "--port", "0", "--latency", str(latency)]


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--latency", type=float, default=0.2)
    parser.add_argument("--concurrency", type=int, default=128)
    parser.add_argument("--episodes", type=int, default=2000)
    parser.add_argument("--baseline", type=int, default=30, help="episodes for openenv")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--no-assert", action="store_true")
    return parser.parse_args()


def _print(rows: list[Row], ideal: float) -> None:
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


def _judged(rows: list[Row], ideal: float) -> int:
    baseline, _, few, many = rows
    missed = [
        f"{words}: {value:.3f}, and {target:g} is wanted"
        for words, value, target, held in (
            (
                "times OpenEnv",
                few.rate / baseline.rate,
                LEAST_RATIO,
                few.rate >= LEAST_RATIO * baseline.rate,
            ),
            ("of the ideal", few.rate / ideal, LEAST_SHARE, few.rate >= LEAST_SHARE * ideal),
            (
                "memory growth",
                many.peak_mib / few.peak_mib,
                MOST_GROWTH,
                many.peak_mib <= MOST_GROWTH * few.peak_mib,
            ),
        )
        if not held
    ]
    for words in missed:
        print(words, file=sys.stderr)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
