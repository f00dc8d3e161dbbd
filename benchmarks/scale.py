"""The real scheduler and journal with episodes that take no time, at growing sizes.

    python benchmarks/scale.py [--episodes 10000 100000 1000000] [--nodes 100]

Workers of as many nodes as given answer each block at once with finished lines, so that what is
measured is the one process that plans, dispatches and records: its limit is the limit of a cluster.
Each size is a process of its own; afterwards the run is opened again, as a resumed one is. Memory
is the peak of the process. The files are in a temporary folder and are removed.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

from ludus.agents.oracle import OracleAgent
from ludus.data.episode import format_episode_id
from ludus.data.episode_reader import ResumeIndex, read_resume_index
from ludus.data.files import Checksum
from ludus.data.journal import Journal
from ludus.data.run_folder import RunFolder
from ludus.environment.mixture import parse_mixture
from ludus.rollout.collect import Collector
from ludus.rollout.config import CollectConfig
from ludus.rollout.endpoints import resolve_endpoints
from ludus.rollout.plan import Plan
from ludus.rollout.progress import ignore_progress
from ludus.rollout.workers import BlockReply, EpisodeWorkers, Worker, WorkerSource

if TYPE_CHECKING:
    from benchmarks.journal import write_episodes
else:
    # Scripts import modules of their own folder by bare names.
    from journal import write_episodes

CORES_PER_NODE = 16


class InstantWorker(Worker):
    """Answers a block with a stored line, under the ids of its items."""

    def __init__(self, parts: tuple[bytes, bytes]) -> None:
        super().__init__()
        self._parts = parts
        self._blocks: asyncio.Queue[Sequence[Any] | None] = asyncio.Queue()

    def send(self, items: Sequence[Any]) -> None:
        self._blocks.put_nowait(items)

    async def read_reply(self) -> BlockReply:
        items = await self._blocks.get()
        if items is None:
            raise EOFError
        first, rest = self._parts
        lines = [first + item[0].episode_id.encode() + rest for item in items]
        return BlockReply(list(lines), [], 0.0)

    async def exit_status(self) -> str:
        return "the end"

    def kill(self) -> None:
        self._blocks.put_nowait(None)

    async def end(self) -> None:
        self.kill()
        if self.reader is not None:
            await self.reader


class InstantWorkers(WorkerSource):
    advice = ""
    max_block_size = 256

    def __init__(self, folder: Path) -> None:
        file = folder / "line.jsonl"
        write_episodes(file, 1)
        first, rest = file.read_bytes().split(format_episode_id("c0ffee00", 0).encode(), 1)
        self._parts = first, rest

    async def start_worker(self) -> Worker:
        return InstantWorker(self._parts)


async def measure(num_episodes: int, nodes: int, path: Path) -> dict[str, float]:
    config = CollectConfig(num_episodes=num_episodes, workers=1)
    mixture, agent = parse_mixture("echo"), OracleAgent()
    folder = RunFolder.create(path / "run", config.identity(mixture, agent))
    workers = EpisodeWorkers(InstantWorkers(path), nodes * CORES_PER_NODE)
    await workers.start()
    endpoints = await resolve_endpoints(mixture)
    plan = Plan(run_id=folder.metadata.digest, mixture=mixture, endpoints=endpoints)
    with Journal.open(folder.episodes_path) as journal:
        index = ResumeIndex(run=folder.metadata.digest, checksum=Checksum())
        collector = Collector(config, agent, folder, plan, endpoints, index, ignore_progress)
        collector.workers = workers
        started_at, cpu_started_at = time.monotonic(), time.process_time()
        await collector.run(journal)
        seconds, cpu = time.monotonic() - started_at, time.process_time() - cpu_started_at
    await workers.close()
    peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    started_at = time.monotonic()
    checksum = Checksum.from_summary(folder.read_summary())
    resumed = read_resume_index(folder.episodes_path, checksum=checksum)
    resume_s = time.monotonic() - started_at
    assert resumed.totals.episodes == num_episodes
    journal_mb = folder.episodes_path.stat().st_size / 1e6
    return {
        "episodes": num_episodes,
        "seconds": seconds,
        "cpu_s": cpu,
        "peak_mb": peak_mb,
        "journal_mb": journal_mb,
        "resume_s": resume_s,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--episodes", type=int, nargs="+", default=[10_000, 100_000, 1_000_000])
    parser.add_argument("--nodes", type=int, default=100)
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        with tempfile.TemporaryDirectory() as folder:
            print(json.dumps(asyncio.run(measure(args.episodes[0], args.nodes, Path(folder)))))
        return
    table = Table(box=None, header_style="bold")
    headings = ("episodes", "episodes/s", "CPU ms/episode", "peak MB", "journal MB", "resume s")
    for heading in headings:
        table.add_column(heading, justify="right")
    for size in args.episodes:
        command = [sys.executable, __file__, "--child", "--episodes", str(size)]
        output = subprocess.check_output([*command, "--nodes", str(args.nodes)])
        row = json.loads(output)
        table.add_row(
            f"{size:,}",
            f"{size / row['seconds']:,.0f}",
            f"{1000 * row['cpu_s'] / size:.3f}",
            f"{row['peak_mb']:,.0f}",
            f"{row['journal_mb']:,.0f}",
            f"{row['resume_s']:.1f}",
        )
    Console(highlight=False, width=100).print(table)


if __name__ == "__main__":
    main()
