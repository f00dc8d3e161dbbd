"""The curriculum in the log of a training run: metrics of the buckets that a step drew."""

from __future__ import annotations

from dataclasses import dataclass

from ludus.data.training_log import LogEntry, metric

_PREFIX = "curriculum/"
_GROUPS, _SUCCESS = "groups", "success"


@dataclass(frozen=True, slots=True)
class BucketMetrics:
    """A bucket in one step."""

    groups: float
    """Groups of the step that were drawn from it."""
    success: float | None
    """Its success rate by then; None before the first scored attempt."""


def to_metrics(label: str, bucket: BucketMetrics) -> dict[str, float]:
    """The metrics of a bucket under their names in the log."""
    metrics = {f"{_PREFIX}{label}/{_GROUPS}": bucket.groups}
    if bucket.success is not None:
        metrics[f"{_PREFIX}{label}/{_SUCCESS}"] = bucket.success
    return metrics


def read_buckets(entry: LogEntry) -> dict[str, BucketMetrics]:
    """The buckets of an entry by label; empty without a curriculum."""
    buckets = {}
    for key in entry:
        label, _, name = key.removeprefix(_PREFIX).rpartition("/")
        if not (key.startswith(_PREFIX) and name == _GROUPS):
            continue
        success = metric(entry, f"{_PREFIX}{label}/{_SUCCESS}")
        buckets[label] = BucketMetrics(metric(entry, key) or 0.0, success)
    return buckets
