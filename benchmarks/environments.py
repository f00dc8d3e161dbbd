"""Resets and steps per second of each environment, in this process and on one core.

    python benchmarks/environments.py [ENV ...] [--seconds 0.5]

Every environment is measured twice. "bare" calls `reset` and `step` of an instance, with actions
that are parsed already. "session" is what collecting, evaluating and training do: they call a tool
on a local session and read what the model is shown. The calls are those of the oracle, or random
ones where there is no oracle; they are recorded before. Resets are measured with seeds that have
not been used before, because an environment may cache what it makes of a seed.

Times are CPU times of this process, which other work on the machine hardly changes. They are wall
times (marked *) for environments whose steps wait for threads or other processes.

`reasoning_gym` is also compared with the bare library: the same data sets are gone through by the
library alone and by a session, question by question, and every answer is scored. These are CPU
times again, with those of the worker processes. Questions depend on the hash seed, so that the
program starts itself again with that of the worker processes.
"""

from __future__ import annotations

import argparse
import asyncio
import io
import itertools
import os
import random
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import redirect_stdout, suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from rich.console import Console
from rich.table import Table

from ludus import connect
from ludus.agents.oracle import OracleEnvironment
from ludus.agents.scripted import random_call
from ludus.client.session import Session
from ludus.data.tool_schema import ToolCall
from ludus.environment.registry import find_environment, registered_environments
from ludus.environment.spec import EnvSpec
from ludus.errors import LudusError

MIN_STEPS_PER_S = {"catch": 20_000, "guess_number": 20_000, "sudoku": 20_000, "wordle": 20_000}
"""The targets, for steps on a session."""
MAX_LIBRARY_RATIO = 1.2
"""The target for reasoning_gym: its time, as a multiple of the library's."""
MAX_RECORDED = 50
"""Episodes that are recorded; fewer where they take long."""
MAX_CALLS = 50
"""Calls of a recorded episode that does not end."""
ROUNDS = 3
"""Each measurement is repeated, and the best one counts: other work on the machine only slows."""
QUESTIONS = 10
"""Questions per data set in the comparison with the library."""

Clock = Callable[[], float]


@dataclass(frozen=True, slots=True)
class Recorded:
    """The calls of one episode."""

    seed: int
    calls: tuple[ToolCall, ...]


@dataclass(slots=True)
class Rates:
    """Resets and steps per second; None where a path does not exist."""

    resets: float | None = None
    steps: float | None = None


@dataclass(frozen=True, slots=True)
class Row:
    """The measurements of one environment."""

    name: str
    bare: Rates
    session: Rates
    wall_time: bool

    @property
    def target(self) -> int | None:
        return MIN_STEPS_PER_S.get(self.name)

    @property
    def met(self) -> bool:
        return self.target is None or (self.session.steps or 0.0) >= self.target


class Seconds(NamedTuple):
    cpu: float
    wall: float


class Stopwatch:
    """Sums up CPU time of this process and its children, and wall time; not its own."""

    def __init__(self) -> None:
        self.seconds = Seconds(0.0, 0.0)

    def __enter__(self) -> None:
        self._children = children_cpu_seconds()
        self._start = Seconds(time.process_time(), time.perf_counter())

    def __exit__(self, *_: object) -> None:
        cpu, wall = time.process_time() - self._start.cpu, time.perf_counter() - self._start.wall
        cpu += children_cpu_seconds() - self._children
        self.seconds = Seconds(self.seconds.cpu + cpu, self.seconds.wall + wall)


def children_cpu_seconds() -> float:
    ticks = 0
    for file in Path("/proc").glob("[0-9]*/stat"):
        with suppress(FileNotFoundError, ProcessLookupError):
            fields = file.read_text().rpartition(")")[2].split()
            if int(fields[1]) == os.getpid():
                ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class LibraryRow:
    """Seconds for the questions of one data set."""

    dataset: str
    library: Seconds
    session: Seconds


def fresh_seeds() -> Iterator[int]:
    """Seeds that nothing else here uses."""
    return itertools.count(1_000_000)


async def record_episodes(env_spec: EnvSpec, seconds: float) -> list[Recorded]:
    """Record the calls of an episode per seed, for at most this time."""
    start = time.perf_counter()
    episodes: list[Recorded] = []
    for seed in range(MAX_RECORDED):
        record = _record_oracle if OracleEnvironment.has_oracle(env_spec) else _record_random
        episodes.append(Recorded(seed, tuple(await record(env_spec, seed))))
        if time.perf_counter() - start > seconds:
            break
    return episodes


async def _record_oracle(env_spec: EnvSpec, seed: int) -> list[ToolCall]:
    shadow = OracleEnvironment(env_spec)
    try:
        await shadow.reset({"seed": seed})
        calls: list[ToolCall] = []
        while len(calls) < MAX_CALLS and (call := await shadow.propose()) is not None:
            await shadow.follow(call)
            calls.append(call)
        return calls
    finally:
        await shadow.close()


async def _record_random(env_spec: EnvSpec, seed: int) -> list[ToolCall]:
    rng = random.Random(seed)
    async with connect(env_spec.id).session() as session:
        await session.reset(seed=seed)
        calls: list[ToolCall] = []
        while len(calls) < MAX_CALLS:
            calls.append(random_call(session.tools, rng))
            if (await session.call(calls[-1].name, calls[-1].arguments)).done:
                break
        return calls


async def measure(spec: str, seconds: float) -> Row:
    env_spec = find_environment(spec)
    episodes = await record_episodes(env_spec, seconds)
    seeds = fresh_seeds()
    bare, session_rates = Rates(), Rates()
    wall_time = env_spec.blocking or env_spec.is_async
    clock = time.perf_counter if wall_time else time.process_time
    async with connect(spec).session() as session:
        for _ in range(ROUNDS):
            if not env_spec.is_async:
                keep_best(bare, *measure_bare(env_spec, episodes, seeds, seconds, clock))
            rates = await measure_session(session, episodes, seeds, seconds, clock)
            keep_best(session_rates, *rates)
    return Row(spec, bare, session_rates, wall_time)


def keep_best(rates: Rates, resets: float, steps: float) -> None:
    rates.resets = max(rates.resets or 0.0, resets)
    rates.steps = max(rates.steps or 0.0, steps)


def measure_bare(
    env_spec: EnvSpec,
    episodes: Sequence[Recorded],
    seeds: Iterator[int],
    seconds: float,
    clock: Clock,
) -> tuple[float, float]:
    """Resets and steps per second of an instance, without a session."""
    environment = env_spec.factory()
    actions = {
        episode.seed: [
            env_spec.parse_action(_wire_action(env_spec, call)) for call in episode.calls
        ]
        for episode in episodes
    }
    resets, started = 0, clock()
    while (elapsed := clock() - started) < seconds:
        environment.reset(seed=next(seeds))
        resets += 1
    steps, in_steps, cycle = 0, 0.0, itertools.cycle(episodes)
    while in_steps < seconds:
        episode = next(cycle)
        environment.reset(seed=episode.seed)
        started = clock()
        for action in actions[episode.seed]:
            environment.step(action)
        in_steps += clock() - started
        steps += len(episode.calls)
    environment.close()
    return resets / elapsed, steps / in_steps


def _wire_action(env_spec: EnvSpec, call: ToolCall) -> dict[str, Any]:
    if env_spec.named_calls:
        return {"type": "call_tool", "tool_name": call.name, "arguments": call.arguments}
    return call.arguments


async def measure_session(
    session: Session,
    episodes: Sequence[Recorded],
    seeds: Iterator[int],
    seconds: float,
    clock: Clock,
) -> tuple[float, float]:
    """Resets and steps per second of a local session, with the text for the model."""
    resets, started = 0, clock()
    while (elapsed := clock() - started) < seconds:
        _ = (await session.reset(seed=next(seeds))).content
        resets += 1
    steps, in_steps, cycle = 0, 0.0, itertools.cycle(episodes)
    while in_steps < seconds:
        episode = next(cycle)
        await session.reset(seed=episode.seed)
        started = clock()
        for call in episode.calls:
            _ = (await session.call(call.name, call.arguments)).content
        in_steps += clock() - started
        steps += len(episode.calls)
    return resets / elapsed, steps / in_steps


async def compare_with_library(datasets: Iterable[str]) -> list[LibraryRow]:
    """Go through data sets with the library alone, and with a session of Ludus."""
    import reasoning_gym

    rows = []
    async with connect("reasoning_gym").session() as session:
        tool = session.tools[0].name
        for name in datasets:
            # Building the data set and its first question, which may read files, are not counted.
            await session.reset(dataset_name=name, seed=1, size=QUESTIONS + 1)
            with redirect_stdout(io.StringIO()):  # Some data sets print.
                dataset = reasoning_gym.create_dataset(name, seed=1, size=QUESTIONS + 1)
                _ = dataset[0]
            library, ours = Stopwatch(), Stopwatch()
            # They take turns, so that other work on the machine slows both.
            for index in range(1, QUESTIONS + 1):
                with library, redirect_stdout(io.StringIO()):
                    entry = dataset[index]
                    answer = str(entry["answer"])
                    dataset.score_answer(answer, entry)
                with ours:
                    await session.reset()
                    await session.call(tool, {"answer": answer})
            rows.append(LibraryRow(name, library.seconds, ours.seconds))
    return rows


def rates_table(rows: Sequence[Row]) -> Table:
    table = Table(title=f"Environments in process, per second (best of {ROUNDS})")
    table.add_column("environment")
    for heading in ("resets/s", "steps/s", "bare resets/s", "bare steps/s", "target", ""):
        table.add_column(heading, justify="right")
    for row in rows:
        verdict = "" if row.target is None else "met" if row.met else "MISSED"
        rates = (row.session.resets, row.session.steps, row.bare.resets, row.bare.steps)
        name = f"{row.name}{'*' * row.wall_time}"
        table.add_row(name, *map(_format_rate, rates), _format_rate(row.target), verdict)
    return table


def _format_rate(rate: float | None) -> str:
    return "-" if rate is None else f"{rate:,.0f}" if rate >= 100 else f"{rate:.3g}"


def library_ratio(rows: Sequence[LibraryRow]) -> float:
    """The CPU time of the sessions as a multiple of the library's, over all data sets."""
    return sum(row.session.cpu for row in rows) / sum(row.library.cpu for row in rows)


def library_table(rows: Sequence[LibraryRow]) -> Table:
    table = Table(title=f"reasoning_gym, ms per question ({QUESTIONS} questions per data set)")
    table.add_column("data set")
    for heading in ("library CPU", "session CPU", "library wall", "session wall"):
        table.add_column(heading, justify="right")
    for row in rows:
        values = (row.library.cpu, row.session.cpu, row.library.wall, row.session.wall)
        table.add_row(row.dataset, *(f"{1000 * value / QUESTIONS:.3f}" for value in values))
    return table


def _parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("environments", nargs="*", help="specs (all registered environments)")
    parser.add_argument("--seconds", type=float, default=0.5, help="length of one measurement")
    return parser.parse_args()


async def run(console: Console, args: argparse.Namespace) -> bool:
    """Measure and print everything; whether all targets are met."""
    rows = []
    for spec in args.environments or registered_environments():
        try:
            rows.append(await measure(spec, args.seconds))
        except LudusError as error:
            console.print(f"{spec} is skipped: {error}", markup=False)
    console.print(rates_table(rows))
    met = all(row.met for row in rows)
    if not any(row.name == "reasoning_gym" for row in rows):
        return met
    from ludus.envs.reasoning_gym import ReasoningGym

    datasets = list(ReasoningGym.variants())
    datasets.remove("composite")  # A mixture of the others, which the library has no default for.
    compared = await compare_with_library(datasets)
    console.print(library_table(compared))
    ratio = library_ratio(compared)
    close = ratio <= MAX_LIBRARY_RATIO
    added = median(row.session.wall - row.library.wall for row in compared) / QUESTIONS
    console.print(
        f"{'MET' if close else 'MISSED'}: over {len(compared)} data sets a session takes "
        f"{ratio:.2f} times the CPU time of the library (target {MAX_LIBRARY_RATIO:g}). "
        f"It adds {1000 * added:.2f} ms to a question (median, wall time)."
    )
    return met and close


def main() -> int:
    if os.environ.get("PYTHONHASHSEED") != "0":
        os.execve(
            sys.executable, [sys.executable, *sys.argv], {**os.environ, "PYTHONHASHSEED": "0"}
        )
    return 0 if asyncio.run(run(Console(width=max(100, Console().width)), _parse_args())) else 1


if __name__ == "__main__":
    sys.exit(main())
