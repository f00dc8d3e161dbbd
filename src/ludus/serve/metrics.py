"""What the server counts, in Prometheus text; summed over workers where there are several."""

from __future__ import annotations

import os

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector

MULTIPROCESS_FOLDER = "PROMETHEUS_MULTIPROC_DIR"
_SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
_BATCH = 1000


class Metrics:
    """The counters of one app."""

    def __init__(self) -> None:
        self._steps: list[float] = []
        registry = self._registry = CollectorRegistry()
        self.sessions = Gauge(
            "ludus_sessions",
            "Sessions that are open now.",
            registry=registry,
            multiprocess_mode="livesum",
        )
        self.opened = Counter("ludus_sessions_opened", "Sessions opened so far.", registry=registry)
        self.resumed = Counter(
            "ludus_sessions_resumed", "Dropped sockets that came back.", registry=registry
        )
        self.resets = Counter("ludus_resets", "Episodes begun.", registry=registry)
        self.steps = Counter("ludus_steps", "Steps done.", registry=registry)
        self.errors = Counter("ludus_errors", "Errors sent, by code.", ["code"], registry=registry)
        self.seconds = Histogram(
            "ludus_step_seconds", "Time of a step.", registry=registry, buckets=_SECONDS
        )

    def stepped(self, seconds: float) -> None:
        """A step was done. Kept for later: Prometheus counters cost more than a cheap step."""
        self._steps.append(seconds)
        if len(self._steps) >= _BATCH:
            self.flush()

    def flush(self) -> None:
        """Count what was kept."""
        kept, self._steps = self._steps, []
        self.steps.inc(len(kept))
        for seconds in kept:
            self.seconds.observe(seconds)

    def text(self) -> bytes:
        self.flush()
        if MULTIPROCESS_FOLDER not in os.environ:
            return generate_latest(self._registry)
        together = CollectorRegistry()
        MultiProcessCollector(together)  # type: ignore[no-untyped-call]
        return generate_latest(together)
