"""The log of a training run: `log.jsonl`, one line per logged step; and its curves as text."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from math import isfinite
from pathlib import Path
from statistics import fmean
from typing import Any

from pydantic_core import from_json

from ludus.data.files import write_atomically
from ludus.data.json_files import dump_json, object_field, to_jsonable
from ludus.data.tool_schema import JsonObject
from ludus.errors import RunError

RECORD_FILE = "training.json"
LOG_FILE = "log.jsonl"
EPISODES_FILE = "episodes.jsonl"
"""The episodes that a GRPO run was trained on."""
_WINDOW_FRACTION = 0.1
"""Size of the first and of the last window, as a fraction of the run."""
_MIN_WINDOW_SIZE = 5
"""Steps that a window has at least: the reward of a single step is mostly noise."""
_TAIL_BLOCK_BYTES = 1 << 20

LogEntry = Mapping[str, Any]
"""A line of the log: the step, and the metrics of it."""


def append_log(out: Path, line: LogEntry) -> None:
    """Append a line to the log. An incomplete last line of a killed writer is removed first."""
    text = dump_json(to_jsonable(line)) + "\n"
    try:
        path = out / LOG_FILE
        with path.open("r+b" if path.exists() else "w+b") as file:
            # The last complete line ends in the last block, because lines are short.
            start = max(0, file.seek(0, os.SEEK_END) - _TAIL_BLOCK_BYTES)
            file.seek(start)
            file.seek(start + file.read().rfind(b"\n") + 1)
            file.truncate()
            file.write(text.encode())
    except OSError as error:
        raise RunError(f"{out / LOG_FILE} cannot be written: {error.strerror or error}.") from error


def truncate_log(out: Path, step: int) -> None:
    """Remove the lines after `step`, if the run resumes from a checkpoint of that step."""
    lines = [line for line in read_log(out) if is_before_checkpoint(line, step)]
    write_atomically(out / LOG_FILE, "".join(dump_json(line) + "\n" for line in lines))


def is_before_checkpoint(entry: LogEntry, step: int) -> bool:
    """Whether an entry was written before the checkpoint of a step.

    A rollback has the number of the step before it, and comes after the checkpoint of that step.
    """
    return int(entry.get("step", 0)) + ("rollback_to" in entry) <= step


def read_log(out: Path) -> Iterator[JsonObject]:
    """Yield the lines of the log; what is not a JSON object is skipped."""
    if not (out / LOG_FILE).is_file():
        # Opening a pipe would wait for its writer.
        return
    try:
        with (out / LOG_FILE).open("rb") as file:
            for line in file:
                with suppress(ValueError):
                    fields = from_json(line)
                    if isinstance(fields, dict):
                        yield fields
    except FileNotFoundError:
        return


def log_points(log: Sequence[LogEntry], key: str = "loss") -> list[tuple[int, float]]:
    """The steps of a training log at which a metric was logged, with its values."""
    points = ((entry.get("step"), entry.get(key)) for entry in log)
    return [(step, value) for step, value in points if step is not None and value is not None]


def summarize_training(record: JsonObject, log: Sequence[LogEntry]) -> str:
    """Summarize steps, first and last loss or reward, from a record or else from its log.

    Empty before the first step.
    """
    metrics = object_field(record, "metrics")
    name = "reward" if record.get("kind") == "grpo" else "loss"
    first, last = (metric(metrics, f"{end}_{name}") for end in ("first", "last"))
    points = log_points(log, name)
    if (first is None or last is None) and points:
        values = [value for _, value in points]
        means = first_and_last_means(values) if name == "reward" else None
        first, last = means or (values[0], values[-1])
    steps = int(metric(metrics, "steps") or (step_number(log[-1]) if log else 0))
    if not steps:
        return ""
    change = "" if first is None or last is None else f", {name} {first:.3g} → {last:.3g}"
    return f"{steps:,} steps{change}"


def metric(entry: LogEntry, key: str) -> float | None:
    """The value of a metric in an entry of the log, or None if it is missing or not finite."""
    value = entry.get(key)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if isfinite(value) else None


def metric_values(entries: Iterable[LogEntry], key: str) -> list[float]:
    """The finite values of a metric; entries without one are skipped."""
    values = (metric(entry, key) for entry in entries)
    return [value for value in values if value is not None]


def entropy_key(entries: Iterable[LogEntry]) -> str:
    """The key under which a training log has the policy's entropy.

    `sampled_nll` covers every episode. The trainer's own `entropy` covers only the episodes that
    were trained on, which are the uncertain ones.
    """
    return "sampled_nll" if metric_values(entries, "sampled_nll") else "entropy"


def step_number(entry: LogEntry) -> int:
    """The training step of an entry of the log; 0 if it has none."""
    return int(metric(entry, "step") or 0)


def window_size(steps: int) -> int:
    """Logged steps in the first and in the last window of a run, whose means are compared.

    They overlap only in a run of one step.
    """
    return max(1, min(max(_MIN_WINDOW_SIZE, round(_WINDOW_FRACTION * steps)), steps // 2))


def first_and_last_means(rewards: Sequence[float]) -> tuple[float, float] | None:
    """The mean rewards of the first and the last window; None without rewards."""
    size = window_size(len(rewards))
    return (fmean(rewards[:size]), fmean(rewards[-size:])) if rewards else None


_PREFIX = "curriculum/"
_GROUPS, _SUCCESS = "groups", "success"


@dataclass(frozen=True, slots=True)
class BucketMetrics:
    """A bucket in one step."""

    groups: float
    """Groups of the step that were drawn from it."""
    success: float | None
    """Its success rate by then; None before the first scored attempt."""


def bucket_log_fields(label: str, bucket: BucketMetrics) -> dict[str, float]:
    """The metrics of a bucket under their names in the log."""
    metrics = {f"{_PREFIX}{label}/{_GROUPS}": bucket.groups}
    if bucket.success is not None:
        metrics[f"{_PREFIX}{label}/{_SUCCESS}"] = bucket.success
    return metrics


def read_bucket_metrics(entry: LogEntry) -> dict[str, BucketMetrics]:
    """Read the metrics of buckets, by label; empty without a curriculum."""
    buckets = {}
    for key in entry:
        label, _, name = key.removeprefix(_PREFIX).rpartition("/")
        if not (key.startswith(_PREFIX) and name == _GROUPS):
            continue
        success = metric(entry, f"{_PREFIX}{label}/{_SUCCESS}")
        buckets[label] = BucketMetrics(metric(entry, key) or 0.0, success)
    return buckets


_BLOCKS = "▁▂▃▄▅▆▇█"


def sparkline(
    values: Sequence[float],
    *,
    low: float | None = None,
    high: float | None = None,
    width: int = 40,
) -> str:
    """Draw a curve as a line of block characters; several values share a block.

    Scaled to the given range, by default from the lowest to the highest value. Empty for a single
    value without a range.
    """
    if len(values) < (2 if low is None else 1):
        return ""
    size = min(width, len(values))
    edges = [number * len(values) // size for number in range(size + 1)]
    means = [fmean(values[start:end]) for start, end in pairwise(edges)]
    low, high = min(means) if low is None else low, max(means) if high is None else high
    top, span = len(_BLOCKS) - 1, (high - low) or 1.0
    return "".join(_BLOCKS[min(top, max(0, round(top * (mean - low) / span)))] for mean in means)
