"""Reading the episodes file when a run is resumed: Ludus and a plain loop, in one run.

    python benchmarks/journal.py [--episodes 1000000]

Ludus reads it with the checksum of `summary.json`, and without one, as after damage. The plain loop
calls `json.loads` on every line and collects the ids. Each runs in its own process, with the file
in the page cache. The file is in a temporary folder and is removed.
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

from ludus.data.episode import Episode, StopReason, Usage
from ludus.data.episode_reader import read_resume_index
from ludus.data.files import Checksum

BLOCK_BYTES = 4 << 20
MARKER_REWARD = 0.8125
"""Appears nowhere else in the line, so that it can be replaced; exact in binary."""


@dataclass(frozen=True, slots=True)
class Measurement:
    """Times and peak memory of one reader."""

    episodes: int
    seconds: float
    cpu_seconds: float
    """More reliable than `seconds` on a busy machine."""
    peak_mb: float


def write_episodes(path: Path, count: int) -> None:
    """Copies of one episode, each with its own id, reward and cost."""
    first, rest = _template_line().split(b"c0ffee00-000000")
    middle, rest = rest.split(b"%r" % MARKER_REWARD, 1)
    usage, rest = rest.split(b"0.000244140625", 1)
    with path.open("wb", buffering=BLOCK_BYTES) as file:
        for index in range(count):
            reward, cost = index % 101 / 100, (1000 + index * 7919 % 9000) / 1e7
            name = b"c0ffee00-%06d" % index
            file.write(b"%b%b%b%r%b%r%b" % (first, name, middle, reward, usage, cost, rest))


def _template_line() -> bytes:
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
            "reward": MARKER_REWARD,
            "usage": Usage(prompt_tokens=1830, completion_tokens=212, cost=0.000244140625),
            "environment": "wordle",
            "group_id": "wordle-12",
            "seed": 12,
            "agent": {"provider": "openai", "model": "small", "temperature": 0.7},
            "messages": [{"role": "user", "content": "Guess the word."}, *sum(turns, ())],
        }
    ).to_line()


def read_with_checksum(path: Path) -> int:
    checksum = Checksum(*json.loads(path.with_suffix(".crc").read_text()))
    return read_resume_index(path, checksum=checksum).totals.episodes


def read_without_checksum(path: Path) -> int:
    return read_resume_index(path).totals.episodes


def read_plain(path: Path) -> int:
    with path.open("rb") as file:
        return len({json.loads(line)["episode_id"] for line in file})


READERS: dict[str, Callable[[Path], int]] = {
    "Ludus": read_with_checksum,
    "no checksum": read_without_checksum,
    "plain": read_plain,
}


def measure(reader: str, path: Path) -> Measurement:
    """Read the file in this process."""
    start, cpu = time.perf_counter(), time.process_time()
    episodes = READERS[reader](path)
    seconds, cpu = time.perf_counter() - start, time.process_time() - cpu
    kilobytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return Measurement(episodes, seconds, cpu, kilobytes / 1024)


def measure_in_process(reader: str, path: Path) -> Measurement:
    command = [sys.executable, __file__, "--reader", reader, "--file", str(path)]
    values: dict[str, Any] = json.loads(subprocess.check_output(command))
    return Measurement(**values)


def table(measurements: dict[str, Measurement], size: int) -> Iterator[str]:
    """The measurements, and the ratios to the plain loop."""
    plain = measurements["plain"]
    yield f"{plain.episodes:,} episodes, {size / 1e9:.2f} GB"
    yield "             seconds    CPU s  episodes/s  peak MB    time  memory"
    for reader, measurement in measurements.items():
        rate = measurement.episodes / measurement.seconds
        faster, smaller = plain.seconds / measurement.seconds, plain.peak_mb / measurement.peak_mb
        yield (
            f"{reader:11}{measurement.seconds:9.2f}{measurement.cpu_seconds:9.2f}{rate:12,.0f}{measurement.peak_mb:9.0f}"
            f"{faster:7.1f}x{smaller:7.1f}x"
        )


def compare(count: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "episodes.jsonl"
        write_episodes(path, count)
        path.with_suffix(".crc").write_text(json.dumps(Checksum.of_file(path)))
        measurements = {reader: measure_in_process(reader, path) for reader in READERS}
        assert {measurement.episodes for measurement in measurements.values()} == {count}
        print("\n".join(table(measurements, path.stat().st_size)))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--episodes", type=int, default=1_000_000)
    parser.add_argument("--reader", choices=READERS, help=argparse.SUPPRESS)
    parser.add_argument("--file", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.reader:
        print(json.dumps(asdict(measure(args.reader, args.file))))
    else:
        compare(args.episodes)


if __name__ == "__main__":
    main()
