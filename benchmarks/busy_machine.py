"""Ludus on a CPU alone and beside two busy loops, which compete with its threads for the cores.

    python benchmarks/busy_machine.py [--quick] [--loops 2]

`ludus run quickstart` runs alone and beside the loops, which may cost at most three times the time.
`--quick` takes minutes less: two steps of SFT on a random model of SmolLM2-135M's shape, with the
threads' wait policy that Ludus sets (passive: they sleep) and with OpenMP's default (they spin).
Files are in a temporary folder and are removed.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from benchmarks.random_model import save_random_model
else:
    # Scripts import modules of their own folder by bare names.
    from random_model import save_random_model

MAX_RATIO = 3.0
SFT_ROWS = 8
TWO_STEPS = (
    *("train", "sft", "rows.jsonl", "--model", "model", "--steps", "2", "--batch-size", "4"),
    *("--report-to", "none"),
)
SPINNING = {"GOMP_SPINCOUNT": "300000"}
"""What GNU OpenMP does without a wait policy."""


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="two steps of SFT instead")
    parser.add_argument("--loops", type=int, default=2)
    args = parser.parse_args()
    print(f"{os.cpu_count()} cores, {args.loops} busy loops\n")
    print("| | alone s | busy s | ratio |")
    print("|---|---:|---:|---:|")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder)
        if args.quick:
            _write_rows(path / "rows.jsonl")
            save_random_model(path / "model")
            _compare("two steps, spinning threads", TWO_STEPS, path, args.loops, SPINNING)
            ratio = _compare("two steps, passive threads", TWO_STEPS, path, args.loops)
        else:
            # Downloads the model, which is not timed.
            _run_ludus(("run", "quickstart", "--dry-run"), path)
            ratio = _compare("`ludus run quickstart`", ("run", "quickstart"), path, args.loops)
    if ratio > MAX_RATIO:
        sys.exit(f"Beside busy loops it takes {ratio:.1f} times as long; at most {MAX_RATIO:g}.")


def _compare(
    name: str, command: tuple[str, ...], folder: Path, loops: int, env: Mapping[str, str] = {}
) -> float:
    """Run a command of Ludus alone and beside busy loops; returns the ratio of the times."""
    seconds = []
    for count in (0, loops):
        with _busy_loops(count):
            start = time.perf_counter()
            _run_ludus((*command, "-o", f"{time.time_ns()}"), folder, env)
            seconds.append(time.perf_counter() - start)
    alone, busy = seconds
    print(f"| {name} | {alone:.0f} | {busy:.0f} | {busy / alone:.1f} |", flush=True)
    return busy / alone


@contextmanager
def _busy_loops(count: int) -> Iterator[None]:
    loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


def _run_ludus(command: tuple[str, ...], folder: Path, env: Mapping[str, str] = {}) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "ludus", *command],
        cwd=folder, env={**os.environ, **env}, capture_output=True, text=True,
    )  # fmt: skip
    if done.returncode:
        sys.exit(done.stderr)


def _write_rows(file: Path) -> None:
    with file.open("w", encoding="utf-8") as rows:
        for number in range(SFT_ROWS):
            sums = " ".join(f"{each} + {number} = {each + number}." for each in range(10))
            messages = [
                {"role": "user", "content": f"Write ten sums with {number}."},
                {"role": "assistant", "content": sums},
            ]
            rows.write(json.dumps({"messages": messages}) + "\n")


if __name__ == "__main__":
    main()
