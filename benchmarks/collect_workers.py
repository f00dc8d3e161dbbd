"""Episodes per second of `ludus collect` by the oracle, in one process and in worker processes.

    python benchmarks/collect_workers.py [--env wordle] [--episodes 20000] [--workers 2] [FLAG ...]

The commands take turns, so that other work on the machine slows both; the best round of each
counts. Times are those of the whole command, with imports and with the episodes written. CPU times
include the workers. Further options are passed on to both commands. Exit code 1 where the workers
miss a target, or do not play the same episodes.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

LUDUS = Path(sys.executable).parent / "ludus"
MIN_RATE = 1000.0
"""Episodes per second, with workers."""
MAX_CPU_MS = 2.0
"""CPU time per episode, with workers."""


@dataclass(frozen=True, slots=True)
class Round:
    """The measurements of one command."""

    workers: int
    seconds: float
    cpu_seconds: float
    episodes: frozenset[tuple[str, str]]
    """Id and content of each episode, without its times."""

    @property
    def rate(self) -> float:
        return len(self.episodes) / self.seconds

    @property
    def cpu_ms(self) -> float:
        return 1000 * self.cpu_seconds / len(self.episodes)

    @property
    def num_distinct(self) -> int:
        return len({content for _, content in self.episodes})


def measure(env: str, num_episodes: int, workers: int, options: list[str]) -> Round:
    with tempfile.TemporaryDirectory() as folder:
        command = [str(LUDUS), "collect", env, "-n", str(num_episodes), "-o", f"{folder}/run"]
        command += ["--workers", str(workers), *options]
        start = time.monotonic()
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        # The usage includes that of the workers, which the process has waited for.
        _, status, usage = os.wait4(process.pid, 0)
        seconds = time.monotonic() - start
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            raise SystemExit(f"{' '.join(command)} failed")
        journal = Path(folder, "run", "episodes.jsonl")
        episodes = frozenset(map(read_episode, journal.read_text().splitlines()))
    return Round(workers, seconds, usage.ru_utime + usage.ru_stime, episodes)


def read_episode(line: str) -> tuple[str, str]:
    episode = json.loads(line)
    return episode["episode_id"], json.dumps([episode["messages"], episode["reward"]])


def rounds_table(best: list[Round]) -> Table:
    table = Table(box=None, header_style="bold")
    for heading in ("processes", "episodes", "distinct", "episodes/s", "ratio", "CPU ms/episode"):
        table.add_column(heading, justify="right")
    for each in best:
        table.add_row(
            str(each.workers),
            f"{len(each.episodes):,}",
            f"{each.num_distinct:,}",
            f"{each.rate:,.0f}",
            f"{each.rate / best[0].rate:.2f}",
            f"{each.cpu_ms:.2f}",
        )
    return table


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--env", default="wordle")
    parser.add_argument("--episodes", type=int, default=20_000)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=4)
    args, options = parser.parse_known_args()
    rounds = [
        measure(args.env, args.episodes, workers, options)
        for _ in range(args.rounds)
        for workers in (1, args.workers)
    ]
    best = [
        max((each for each in rounds if each.workers == workers), key=lambda each: each.rate)
        for workers in (1, args.workers)
    ]
    Console(highlight=False, width=100).print(rounds_table(best))
    if len({each.episodes for each in rounds}) > 1:
        print("The workers have played other episodes.", file=sys.stderr)
        return 1
    met = best[1].rate >= MIN_RATE and best[1].cpu_ms <= MAX_CPU_MS
    if not met:
        print(f"MISSED: {MIN_RATE:g} episodes/s, {MAX_CPU_MS:g} CPU ms", file=sys.stderr)
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
