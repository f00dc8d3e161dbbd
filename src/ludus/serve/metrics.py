"""Prometheus metrics of the server.

The numbers are rows of floats, one row per worker. With several workers the rows are in shared
memory, so that each worker can report the sums. Counting must be cheap, because a step may take
only microseconds.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, MutableSequence

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from ludus.protocol.types import ErrorCode

_STEP_BUCKETS_S = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
SESSIONS, OPENED, RESUMED, RESETS, STEPS, _STEP_SECONDS = range(6)
_COUNTERS = {
    OPENED: ("ludus_sessions_opened", "Sessions opened so far."),
    RESUMED: ("ludus_sessions_resumed", "Dropped sockets that came back."),
    RESETS: ("ludus_resets", "Episodes begun."),
    STEPS: ("ludus_steps", "Steps done."),
}
_ERRORS = {code.value: 6 + number for number, code in enumerate(ErrorCode)}
_BUCKETS = 6 + len(_ERRORS)
ROW_WIDTH = _BUCKETS + len(_STEP_BUCKETS_S) + 1


class Metrics(Collector):
    """Counts in the row of this worker, and reports the sums over all rows."""

    def __init__(self, rows: MutableSequence[float] | None = None, worker: int = 0) -> None:
        self._rows = rows if rows is not None else [0.0] * ROW_WIDTH
        self._offset = worker * ROW_WIDTH

    def set_sessions(self, count: int) -> None:
        self._rows[self._offset + SESSIONS] = count

    def count(self, number: int) -> None:
        """Count an event: `OPENED`, `RESUMED` or `RESETS`."""
        self._rows[self._offset + number] += 1

    def count_step(self, seconds: float) -> None:
        rows, at = self._rows, self._offset
        rows[at + STEPS] += 1
        rows[at + _STEP_SECONDS] += seconds
        rows[at + _BUCKETS + bisect_left(_STEP_BUCKETS_S, seconds)] += 1

    def count_error(self, code: str) -> None:
        self.count(_ERRORS.get(code, _ERRORS["EXECUTION_ERROR"]))

    def total(self, number: int) -> float:
        """The sum over all workers."""
        return sum(self._rows[number::ROW_WIDTH])

    def collect(self) -> Iterator[Metric]:
        yield GaugeMetricFamily(
            "ludus_sessions", "Sessions that are open now.", self.total(SESSIONS)
        )
        for number, (name, words) in _COUNTERS.items():
            yield CounterMetricFamily(name, words, self.total(number))
        errors = CounterMetricFamily("ludus_errors", "Errors sent, by code.", labels=["code"])
        for code, number in _ERRORS.items():
            errors.add_metric([code], self.total(number))
        yield errors
        so_far, buckets = 0.0, []
        for index, edge in enumerate((*map(str, _STEP_BUCKETS_S), "+Inf")):
            so_far += self.total(_BUCKETS + index)
            buckets.append((edge, so_far))
        yield HistogramMetricFamily(
            "ludus_step_seconds", "Time of a step.", buckets, self.total(_STEP_SECONDS)
        )

    def text(self) -> bytes:
        registry = CollectorRegistry()
        registry.register(self)
        return generate_latest(registry)
