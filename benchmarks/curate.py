"""Curating a million episodes: Ludus beside the plain loop of an offline tutorial, in one run.

    python benchmarks/curate.py [--episodes 1000000]

The loop is the one that people write: `json.loads` on every line, keep those with a reward of at
least 0.8, write them out again. It is compared with `ludus.curation` doing that and nothing else.
Then Ludus does all of it: filter, leave out exact copies, split by task with a look for near
copies, and write rows for SFT. Each is a process of its own; they take turns, three times, with the
file in the system's cache. Shown are medians: the seconds of the work itself, and those of the
process with the start of Python and of all libraries. Files lie in a temporary folder and are
removed.
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

BLOCK = 4 << 20
ATTEMPTS = 8
COPIES = 0.1
ROUNDS = 3
FASTER, MEMORY_MB = 5.0, 2_000.0
WORDS = ("crane", "slate", "audio", "point", "house", "light", "brave", "chunk", "fjord", "glyph")
LOOP = """
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
OURS = """
import sys, time
from pathlib import Path
import duckdb
from ludus.curation import CurateConfig, curate
config = CurateConfig(where="reward >= 0.8", {more})
start = time.perf_counter()
curate([Path(sys.argv[1])], Path(sys.argv[2]), config, overwrite=True)
print(time.perf_counter() - start)
"""
FILTER = OURS.format(more="to='episodes', dedupe=False")
ALL = OURS.format(more="to='sft', test_size=0.1")


@dataclass(frozen=True, slots=True, order=True)
class Measured:
    """What one process took."""

    seconds: float
    process: float
    cpu: float
    peak_mb: float


def make(path: Path, count: int) -> None:
    """Eight attempts at each of many tasks, a tenth of them exact copies of the one before."""
    draw = random.Random(0)
    with path.open("wb", buffering=BLOCK) as file:
        last = b""
        for index in range(count):
            copied = index % ATTEMPTS and draw.random() < COPIES
            last = last if copied else episode(index, draw).to_line()
            file.write(last.replace(b"{at}", b"%06d" % index, 1))


def episode(index: int, draw: random.Random) -> Episode:
    """Two kilobytes of a word game. One in a hundred is broken."""
    task = {"seed": index // ATTEMPTS}
    broken = draw.random() < 0.01
    turns = [turn for at in range(3) for turn in played(at, draw)]
    return Episode(
        episode_id="c0ffee00-{at}",
        stop_reason=StopReason.BROKEN if broken else StopReason.DONE,
        reward=None if broken else draw.randrange(101) / 100,
        usage=Usage(prompt_tokens=1830, completion_tokens=212),
        environment="riddles",
        task=task,
        seed=task["seed"],
        group_id=task_group_id("riddles", task),
        agent={"provider": "openai", "model": "small", "temperature": 0.7},
        messages=(Message(role="user", content=question(task["seed"])), *turns),
        turns=3,
        tool_calls=3,
    )


def question(seed: int) -> str:
    draw = random.Random(seed)
    told = " ".join(f"{draw.choice(WORDS)}{draw.randrange(10_000)}" for _ in range(12))
    return f"Find the word that does not belong to the others, and say why it does not: {told}."


def played(at: int, draw: random.Random) -> Iterator[Message]:
    thought = " ".join(draw.choice(WORDS) for _ in range(24))
    function = Function(name="guess", arguments=json.dumps({"word": draw.choice(WORDS)}))
    call = Call(id=f"call_{at}", function=function)
    yield Message(role="assistant", reasoning_content=f"Let me see. {thought}.", tool_calls=(call,))
    yield Message(role="tool", tool_call_id=call.id, content=f"No, it is not {draw.random()}.")


def measured(program: str, *arguments: Path) -> Measured:
    """Run a program that prints the seconds of its work, and see what its process took."""
    os.sync()  # What the one before it wrote is not on its bill.
    command = [sys.executable, "-c", program, *map(str, arguments)]
    start = time.perf_counter()
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        seconds = process.stdout.read()
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        sys.exit(f"A program ended with {process.returncode}.")
    whole = time.perf_counter() - start
    return Measured(float(seconds), whole, used.ru_utime + used.ru_stime, used.ru_maxrss / 1024)


def compare(count: int) -> bool:
    with tempfile.TemporaryDirectory() as folder:
        path, kept = Path(folder) / "episodes.jsonl", Path(folder) / "kept.jsonl"
        make(path, count)
        with path.open("rb", buffering=0) as file:
            while file.read(BLOCK):
                pass
        lone, rows = Path(folder) / "filtered", Path(folder) / "rows"
        loops, alones, wholes = [], [], []
        for _ in range(ROUNDS):
            loops.append(measured(LOOP, path, kept))
            alones.append(measured(FILTER, path, lone))
            wholes.append(measured(ALL, path, rows))
        loop, alone, whole = (sorted(each)[ROUNDS // 2] for each in (loops, alones, wholes))
        same = filecmp.cmp(kept, lone / "train.jsonl", shallow=False)
        print(f"{count:,} episodes, {path.stat().st_size / 1e9:.2f} GB")
        print("                            seconds  process s    CPU s  peak MB     speed")
        for name, taken in (
            ("plain loop, filter", loop),
            ("Ludus, filter", alone),
            ("Ludus, all of it", whole),
        ):
            print(
                f"{name:26}{taken.seconds:9.1f}{taken.process:11.1f}{taken.cpu:9.1f}"
                f"{taken.peak_mb:9.0f}{loop.seconds / taken.seconds:9.1f}x"
            )
        print("The filtered files are " + ("equal." if same else "NOT EQUAL."))
        peak = max(alone.peak_mb, whole.peak_mb)
        return same and loop.seconds / alone.seconds >= FASTER and peak < MEMORY_MB


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--episodes", type=int, default=1_000_000)
    sys.exit(not compare(parser.parse_args().episodes))


if __name__ == "__main__":
    main()
