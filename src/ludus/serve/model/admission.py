"""Which requests may run or wait, and the wait for them at shutdown."""

from __future__ import annotations

import asyncio
import math
import statistics
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from ludus.serve.model.api_errors import ApiError
from ludus.serve.model.model_metrics import ModelMetrics

_NUM_RECENT = 64
"""Requests whose durations are kept for `Retry-After`."""


class Admission:
    """Counts the completions that run, `max_batch` at most, and that wait, `max_queue` at most."""

    def __init__(self, metrics: ModelMetrics, *, max_batch: int, max_queue: int) -> None:
        self.is_draining = False
        self._metrics = metrics
        self._max_batch, self._max_queue = max_batch, max_queue
        self._in_flight = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self._durations_s: deque[float] = deque(maxlen=_NUM_RECENT)

    @contextmanager
    def admit(self, num_choices: int) -> Iterator[None]:
        """Take places for the choices of a request, or raise 429 if there are not enough."""
        if self.is_draining:
            raise ApiError("The server is shutting down.", status=503, headers={"Retry-After": "5"})
        if num_choices > self._max_batch + self._max_queue:
            # Not 429: there will never be enough places.
            raise ApiError(
                f"A request may have at most {self._max_batch + self._max_queue} choices on this "
                f"server, got {num_choices}.",
                param="n",
            )
        if self._in_flight + num_choices > self._max_batch + self._max_queue:
            raise ApiError(
                f"The server is busy: {self._in_flight} requests are running or waiting, and "
                f"{self._max_queue} may wait. Try again later.",
                status=429,
                code="queue_full",
                headers={"Retry-After": str(self._retry_after_s())},
            )
        start = time.monotonic()
        self._add_in_flight(num_choices)
        try:
            yield
        finally:
            self._add_in_flight(-num_choices)
            self._durations_s.append(time.monotonic() - start)

    async def drain(self, timeout: float, force_exit: Callable[[], bool]) -> None:
        """Admit no more requests, and wait for running ones, `timeout` seconds at most."""
        self.is_draining = True
        deadline = time.monotonic() + timeout
        while self._in_flight and time.monotonic() < deadline and not force_exit():
            try:
                await asyncio.wait_for(self._idle.wait(), timeout=0.1)
            except TimeoutError:
                continue

    def _add_in_flight(self, num_choices: int) -> None:
        self._in_flight += num_choices
        self._metrics.set_in_flight(self._in_flight)
        if self._in_flight:
            self._idle.clear()
        else:
            self._idle.set()

    def _retry_after_s(self) -> int:
        """The usual duration of a request: by then a place should be free."""
        if not self._durations_s:
            return 1
        return max(1, math.ceil(statistics.median_high(self._durations_s)))
