"""One node of a Ray cluster beside the plain collector, with as many workers each.

    python benchmarks/ray_overhead.py [--env wordle] [--episodes 20000] [--workers 2] [--rounds 4]

The cluster is up before the first round, as it is where it serves many runs. Rounds take turns, so
that other work on the machine slows both; the best of each counts, and the ratio of the medians
stands beside it. A time is that of `collect`, with the start of the workers and every line written.
Exit code 1 where the overhead is above 15 %, or other episodes were played.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

from rich.console import Console
from rich.table import Table

from ludus.rollout.collect import collect_sync
from ludus.rollout.config import CollectConfig

MAX_OVERHEAD = 0.15


def measure(env: str, num_episodes: int, workers: int, ray: str | None) -> tuple[float, set[str]]:
    """Seconds, and the episodes without their times."""
    config = CollectConfig(num_episodes=num_episodes, workers=workers, ray=ray)
    with tempfile.TemporaryDirectory() as folder:
        started_at = time.monotonic()
        collect_sync(env, Path(folder, "run"), config)
        seconds = time.monotonic() - started_at
        lines = Path(folder, "run", "episodes.jsonl").read_text().splitlines()
    fields = (json.loads(line) for line in lines)
    keys = ("episode_id", "messages", "reward")
    return seconds, {json.dumps([episode[key] for key in keys]) for episode in fields}


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--env", default="wordle")
    parser.add_argument("--episodes", type=int, default=20_000)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=4)
    args = parser.parse_args()
    import ray

    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    options = {"include_dashboard": False, "log_to_driver": False}
    ray.init(address="local", num_cpus=args.workers, logging_level=logging.ERROR, **options)
    times: dict[str | None, list[float]] = {None: [], "local": []}
    played: list[set[str]] = []
    for _ in range(args.rounds):
        for address, seconds in times.items():
            elapsed, episodes = measure(args.env, args.episodes, args.workers, address)
            seconds.append(elapsed)
            played.append(episodes)
    ray.shutdown()
    table = Table(box=None, header_style="bold")
    for heading in ("", "episodes/s, best", "median"):
        table.add_column(heading, justify="right")
    for name, seconds in zip(("processes", "one Ray node"), times.values(), strict=True):
        rates = [args.episodes / each for each in seconds]
        table.add_row(name, f"{max(rates):,.0f}", f"{statistics.median(rates):,.0f}")
    console = Console(highlight=False, width=100)
    console.print(table)
    overhead = min(times["local"]) / min(times[None]) - 1
    by_median = statistics.median(times["local"]) / statistics.median(times[None]) - 1
    console.print(f"Overhead: {overhead:+.1%} (best), {by_median:+.1%} (median)")
    if any(episodes != played[0] for episodes in played):
        print("Other episodes were played.", file=sys.stderr)
        return 1
    return 1 if overhead > MAX_OVERHEAD else 0


if __name__ == "__main__":
    sys.exit(main())
