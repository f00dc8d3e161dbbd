"""The buckets of a curriculum over a run: how often each was drawn, and its success rate."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from ludus.data.curriculum_log import read_buckets
from ludus.data.training_log import LogEntry

FIRST_GROUPS = 8
"""Groups of a bucket over which its first success rate is averaged."""


@dataclass(frozen=True, slots=True)
class BucketStats:
    """A bucket over the whole run."""

    label: str
    groups: float
    share: float
    """Share of all groups that were drawn from it."""
    last_share: float
    """The same over the last window."""
    first_success: float | None
    last_success: float | None
    """None: no attempt was scored."""


def bucket_stats(
    entries: Sequence[LogEntry], last_window: Sequence[LogEntry]
) -> tuple[BucketStats, ...]:
    """The buckets in the order in which they were first drawn; empty without a curriculum."""
    groups: dict[str, float] = {}
    first: dict[str, list[float]] = {}
    last: dict[str, float] = {}
    recent: dict[str, float] = {}
    for entry in entries:
        for label, bucket in read_buckets(entry).items():
            if bucket.success is not None:
                if groups.get(label, 0.0) < FIRST_GROUPS:
                    first.setdefault(label, []).append(bucket.success)
                last[label] = bucket.success
            groups[label] = groups.get(label, 0.0) + bucket.groups
    for entry in last_window:
        for label, bucket in read_buckets(entry).items():
            recent[label] = recent.get(label, 0.0) + bucket.groups
    total, recent_total = sum(groups.values()), sum(recent.values())
    return tuple(
        BucketStats(
            label, count, count / total, recent.get(label, 0.0) / (recent_total or 1.0),
            fmean(first[label]) if label in first else None, last.get(label),
        )
        for label, count in groups.items()
    )  # fmt: skip
