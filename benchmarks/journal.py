"""Reading a journal back when a run is resumed: Ludus beside the plain way, in one run.

    python benchmarks/journal.py [--episodes 1000000]

Ludus reads it with the checksum that `summary.json` has of it, and without one, as after damage.
The plain way is `json.loads` on every line and a set of the ids. Each reads the same file in a
process of its own, after one pass over it, so that both find it in the system's cache. The file
lies in a temporary folder and is removed.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ludus.data.checksum import Checksum
from ludus.data.episode import Episode, StopReason, Usage
from ludus.data.resume_index import read_resume_index

BLOCK = 4 << 20
MARKED = 0.8125
"""A reward that stands in the line nowhere else; a fraction of two has a short text."""


@dataclass(frozen=True, slots=True)
class Reading:
    """What one way of reading took."""

    episodes: int
    seconds: float
    cpu: float
    """Seconds of the processor; on a busy machine these say more."""
    peak_mb: float


def make(path: Path, count: int) -> None:
    """Lines of one real episode, each with an id, a reward and a cost of its own."""
    first, rest = _template().split(b"c0ffee00-000000")
    middle, rest = rest.split(b"%r" % MARKED, 1)
    usage, rest = rest.split(b"0.000244140625", 1)
    with path.open("wb", buffering=BLOCK) as file:
        for index in range(count):
            reward, cost = index % 101 / 100, (1000 + index * 7919 % 9000) / 1e7
            name = b"c0ffee00-%06d" % index
            file.write(b"%b%b%b%r%b%r%b" % (first, name, middle, reward, usage, cost, rest))


def _template() -> bytes:
    guess = {"id": "call_1", "function": {"name": "guess", "arguments": '{"word":"crane"}'}}
    turns = [
        ({"role": "assistant", "reasoning_content": "A vowel or two, then the common consonants. "
          "The letters that are left speak for this one.", "tool_calls": [guess]},
         {"role": "tool", "tool_call_id": "call_1", "content": "C absent, R present, A correct"})
        for _ in range(4)
    ]  # fmt: skip
    return Episode.model_validate(
        {
            "episode_id": "c0ffee00-000000",
            "stop_reason": StopReason.DONE,
            "reward": MARKED,
            "usage": Usage(prompt_tokens=1830, completion_tokens=212, cost=0.000244140625),
            "environment": "wordle",
            "group_id": "wordle-12",
            "seed": 12,
            "agent": {"provider": "openai", "model": "small", "temperature": 0.7},
            "messages": [{"role": "user", "content": "Guess the word."}, *sum(turns, ())],
        }
    ).to_line()


def by_heads(path: Path) -> int:
    checksum = Checksum(*json.loads(path.with_suffix(".crc").read_text()))
    return read_resume_index(path, checksum=checksum).totals.episodes


def unverified(path: Path) -> int:
    return read_resume_index(path).totals.episodes


def plainly(path: Path) -> int:
    with path.open("rb") as file:
        return len({json.loads(line)["episode_id"] for line in file})


WAYS: dict[str, Callable[[Path], int]] = {
    "Ludus": by_heads,
    "no checksum": unverified,
    "plain": plainly,
}


def read(way: str, path: Path) -> Reading:
    """What this process takes to read the file."""
    start, cpu = time.perf_counter(), time.process_time()
    episodes = WAYS[way](path)
    seconds, cpu = time.perf_counter() - start, time.process_time() - cpu
    kilobytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return Reading(episodes, seconds, cpu, kilobytes / 1024)


def in_a_process(way: str, path: Path) -> Reading:
    command = [sys.executable, __file__, "--way", way, "--file", str(path)]
    said: dict[str, Any] = json.loads(subprocess.check_output(command))
    return Reading(**said)


def table(readings: dict[str, Reading], size: int) -> Iterator[str]:
    """The figures, and how many times better than the plain way they are."""
    plain = readings["plain"]
    yield f"{plain.episodes:,} episodes, {size / 1e9:.2f} GB"
    yield "             seconds    CPU s  episodes/s  peak MB    time  memory"
    for way, reading in readings.items():
        rate = reading.episodes / reading.seconds
        faster, smaller = plain.seconds / reading.seconds, plain.peak_mb / reading.peak_mb
        yield (
            f"{way:11}{reading.seconds:9.2f}{reading.cpu:9.2f}{rate:12,.0f}{reading.peak_mb:9.0f}"
            f"{faster:7.1f}x{smaller:7.1f}x"
        )


def compare(count: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "episodes.jsonl"
        make(path, count)
        path.with_suffix(".crc").write_text(json.dumps(Checksum.of_file(path)))
        readings = {way: in_a_process(way, path) for way in WAYS}
        assert {reading.episodes for reading in readings.values()} == {count}
        print("\n".join(table(readings, path.stat().st_size)))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--episodes", type=int, default=1_000_000)
    parser.add_argument("--way", choices=WAYS, help=argparse.SUPPRESS)
    parser.add_argument("--file", type=Path, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.way:
        print(json.dumps(asdict(read(asked.way, asked.file))))
    else:
        compare(asked.episodes)


if __name__ == "__main__":
    main()
