"""Serve an environment on loopback, and let its own solution play it over the wire.

python examples/oracle_over_the_wire.py
python examples/oracle_over_the_wire.py wordle --episodes 200
"""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from ludus import connect
from ludus.agents.oracle import Oracle
from ludus.client.endpoint import Endpoint
from ludus.data.content import plain
from ludus.environment.registry import find

AT_ONCE = 8


@dataclass
class Tally:
    """What the episodes came to."""

    returns: list[float] = field(default_factory=list)
    steps: int = 0
    first: str = ""


@contextmanager
def serving(spec: str) -> Iterator[str]:
    """`ludus serve` in a process of its own, on a free port."""
    command = [sys.executable, "-u", "-m", "ludus", "serve", spec, "--port", "0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        address = re.search(r"http://\S+", process.stdout.readline())
        if address is None:
            raise SystemExit("The server did not start.")
        yield address.group()
    finally:
        process.terminate()
        process.wait(30)
        process.stdout.close()


async def play(endpoint: Endpoint, spec: str, seed: int, tally: Tally) -> None:
    """One episode, solved by the oracle."""
    oracle = Oracle(find(spec))
    async with endpoint.session() as session:
        result = await session.reset(seed=seed)
        tally.first = tally.first or plain(result.content)
        await oracle.reset({"seed": seed})
        total = 0.0
        while not result.done and (call := await oracle.act()) is not None:
            result = await session.call(call.name, call.arguments)
            total += result.reward or 0.0
            tally.steps += 1
        tally.returns.append(total)
    await oracle.close()


async def play_all(url: str, spec: str, episodes: int, out: Console) -> Tally:
    endpoint, tally = connect(url), Tally()
    free = asyncio.Semaphore(AT_ONCE)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, TimeRemainingColumn(), console=out) as progress:
        bar = progress.add_task("episodes", total=episodes)

        async def one(seed: int) -> None:
            async with free:
                await play(endpoint, spec, seed, tally)
            progress.advance(bar)

        async with asyncio.TaskGroup() as group:
            for seed in range(episodes):
                group.create_task(one(seed))
    return tally


def main(
    spec: Annotated[str, typer.Argument(help="What to play.")] = "reasoning_gym:chain_sum",
    episodes: Annotated[int, typer.Option(min=1, help="How many.")] = 50,
) -> None:
    """Serve SPEC on loopback and let its oracle play it over the wire."""
    out = Console(highlight=False)
    with serving(spec) as url:
        out.print(
            f"[bold]{spec}[/] is served on {url}; its oracle plays {episodes} episodes there."
        )
        began = time.monotonic()
        tally = asyncio.run(play_all(url, spec, episodes, out))
        seconds = time.monotonic() - began
    table = Table(box=None, show_header=False)
    for name, value in (
        ("episodes", str(len(tally.returns))),
        ("mean reward", f"{sum(tally.returns) / len(tally.returns):.3f}"),
        ("solved", f"{sum(r >= 1.0 for r in tally.returns)}"),
        ("steps", str(tally.steps)),
        ("seconds", f"{seconds:.1f}  ({len(tally.returns) / seconds:.0f} episodes/s)"),
        ("a first observation", tally.first),
    ):
        table.add_row(f"[bold]{name}[/]", value)
    out.print(table)


if __name__ == "__main__":
    typer.run(main)
