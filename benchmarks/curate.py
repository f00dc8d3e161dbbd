"""Curating a million episodes with Ludus and with the plain loop of a tutorial, in one run.

    python benchmarks/curate.py [--episodes 1000000]

The loop calls `json.loads` on every line, keeps those with a reward of at least 0.8, and writes
them out. It is compared with `ludus.curation` doing the same. Then Ludus runs its whole pipeline:
filter, remove exact duplicates, split by task with a check for near duplicates, and write SFT rows.
Each runs in its own process; they take turns, three times, with the file in the page cache. Shown
are medians: the seconds of the work itself, and those of the process including the imports. Files
are in a temporary folder and are removed.
"""

from __future__ import annotations

import argparse
import filecmp
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ludus.data.episode import Episode, StopReason, Usage, task_group_id
from ludus.data.messages import Call, Function, Message

BLOCK_BYTES = 4 << 20
ATTEMPTS_PER_TASK = 8
DUPLICATE_FRACTION = 0.1
ROUNDS = 3
MIN_SPEEDUP, MAX_MEMORY_MB = 5.0, 2_000.0
WORDS = ("crane", "slate", "audio", "point", "house", "light", "brave", "chunk", "fjord", "glyph")
PLAIN_LOOP = """
import json, sys, time
start = time.perf_counter()
kept, total = 0, 0
with open(sys.argv[1]) as f, open(sys.argv[2], 'w') as out:
    for line in f:
        rollout = json.loads(line)
        total += 1
        if (rollout.get('reward') or 0) >= 0.8:
            out.write(line)
            kept += 1
print(time.perf_counter() - start)
"""
LUDUS = """
import sys, time
from pathlib import Path
import duckdb
from ludus.curation import CurateConfig, curate
config = CurateConfig(where="reward >= 0.8", {options})
start = time.perf_counter()
curate([Path(sys.argv[1])], Path(sys.argv[2]), config, overwrite=True)
print(time.perf_counter() - start)
"""
FILTER_ONLY = LUDUS.format(options="to='episodes', dedupe=False")
FULL_PIPELINE = LUDUS.format(options="to='sft', test_size=0.1")


@dataclass(frozen=True, slots=True, order=True)
class Measurement:
    """Times and peak memory of one process."""

    seconds: float
    process_seconds: float
    cpu_seconds: float
    peak_mb: float


def write_episodes(path: Path, count: int) -> None:
    """Eight attempts at each task, a tenth of them exact duplicates of the one before."""
    rng = random.Random(0)
    with path.open("wb", buffering=BLOCK_BYTES) as file:
        last = b""
        for index in range(count):
            is_duplicate = index % ATTEMPTS_PER_TASK and rng.random() < DUPLICATE_FRACTION
            last = last if is_duplicate else build_episode(index, rng).to_line()
            file.write(last.replace(b"{at}", b"%06d" % index, 1))


def build_episode(index: int, rng: random.Random) -> Episode:
    """Two kilobytes of a word game. One in a hundred is broken."""
    task = {"seed": index // ATTEMPTS_PER_TASK}
    broken = rng.random() < 0.01
    messages = [message for turn in range(3) for message in build_turn(turn, rng)]
    return Episode(
        episode_id="c0ffee00-{at}",
        stop_reason=StopReason.BROKEN if broken else StopReason.DONE,
        reward=None if broken else rng.randrange(101) / 100,
        usage=Usage(prompt_tokens=1830, completion_tokens=212),
        environment="riddles",
        task=task,
        seed=task["seed"],
        group_id=task_group_id("riddles", task),
        agent={"provider": "openai", "model": "small", "temperature": 0.7},
        messages=(Message(role="user", content=build_question(task["seed"])), *messages),
        turns=3,
        tool_calls=3,
    )


def build_question(seed: int) -> str:
    rng = random.Random(seed)
    words = " ".join(f"{rng.choice(WORDS)}{rng.randrange(10_000)}" for _ in range(12))
    return f"Find the word that does not belong to the others, and say why it does not: {words}."


def build_turn(turn: int, rng: random.Random) -> Iterator[Message]:
    reasoning = " ".join(rng.choice(WORDS) for _ in range(24))
    function = Function(name="guess", arguments=json.dumps({"word": rng.choice(WORDS)}))
    call = Call(id=f"call_{turn}", function=function)
    yield Message(
        role="assistant", reasoning_content=f"Let me see. {reasoning}.", tool_calls=(call,)
    )
    yield Message(role="tool", tool_call_id=call.id, content=f"No, it is not {rng.random()}.")


def measure(program: str, *arguments: Path) -> Measurement:
    """Run a program that prints the seconds of its work, and measure its process."""
    os.sync()  # Do not count the writes of the program before.
    command = [sys.executable, "-c", program, *map(str, arguments)]
    start = time.perf_counter()
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        seconds = process.stdout.read()
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        sys.exit(f"A program ended with {process.returncode}.")
    process_seconds = time.perf_counter() - start
    cpu_seconds = usage.ru_utime + usage.ru_stime
    return Measurement(float(seconds), process_seconds, cpu_seconds, usage.ru_maxrss / 1024)


def compare(count: int) -> bool:
    """Print the measurements; returns whether the targets are met."""
    with tempfile.TemporaryDirectory() as folder:
        path, kept = Path(folder) / "episodes.jsonl", Path(folder) / "kept.jsonl"
        write_episodes(path, count)
        with path.open("rb", buffering=0) as file:
            while file.read(BLOCK_BYTES):
                pass
        filtered, rows = Path(folder) / "filtered", Path(folder) / "rows"
        loops, filters, pipelines = [], [], []
        for _ in range(ROUNDS):
            loops.append(measure(PLAIN_LOOP, path, kept))
            filters.append(measure(FILTER_ONLY, path, filtered))
            pipelines.append(measure(FULL_PIPELINE, path, rows))
        loop, filter_only, pipeline = (
            sorted(runs)[ROUNDS // 2] for runs in (loops, filters, pipelines)
        )
        same = filecmp.cmp(kept, filtered / "train.jsonl", shallow=False)
        print(f"{count:,} episodes, {path.stat().st_size / 1e9:.2f} GB")
        print("                            seconds  process s    CPU s  peak MB     speed")
        for name, measurement in (
            ("plain loop, filter", loop),
            ("Ludus, filter", filter_only),
            ("Ludus, full pipeline", pipeline),
        ):
            print(
                f"{name:26}{measurement.seconds:9.1f}{measurement.process_seconds:11.1f}{measurement.cpu_seconds:9.1f}"
                f"{measurement.peak_mb:9.0f}{loop.seconds / measurement.seconds:9.1f}x"
            )
        print("The filtered files are " + ("equal." if same else "NOT EQUAL."))
        peak = max(filter_only.peak_mb, pipeline.peak_mb)
        return same and loop.seconds / filter_only.seconds >= MIN_SPEEDUP and peak < MAX_MEMORY_MB


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--episodes", type=int, default=1_000_000)
    sys.exit(not compare(parser.parse_args().episodes))


if __name__ == "__main__":
    main()
