"""Which requests may run or wait, the wait for them at shutdown, and Prometheus metrics."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from ludus.policy.engine.engine_api import DecodeStats
from ludus.serve.model.api_errors import ApiError

_BUCKETS_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)
_POLL_INTERVAL_S = 0.1


class ModelMetrics:
    """Counters of requests and tokens, and latencies."""

    def __init__(self, stats: DecodeStats) -> None:
        self.registry = registry = CollectorRegistry()
        self.requests = Counter(
            "ludus_model_requests",
            "Requests answered, by path and status.",
            ["path", "status"],
            registry=registry,
        )
        self.in_flight = Gauge(
            "ludus_model_requests_in_flight",
            "Completions that are being sampled or wait for it.",
            registry=registry,
        )
        self.cancelled = Counter(
            "ludus_model_requests_cancelled", "Requests whose client went away.", registry=registry
        )
        self.prompt_tokens = Counter(
            "ludus_model_prompt_tokens", "Prompt tokens of finished completions.", registry=registry
        )
        self.completion_tokens = Counter(
            "ludus_model_completion_tokens", "Tokens of finished completions.", registry=registry
        )
        self.completion_seconds = Histogram(
            "ludus_model_completion_seconds",
            "Time of a completion, including its time in the queue.",
            registry=registry,
            buckets=_BUCKETS_S,
        )
        self.first_token_seconds = Histogram(
            "ludus_model_first_token_seconds",
            "Time until the first tokens of a streamed completion.",
            registry=registry,
            buckets=_BUCKETS_S,
        )
        for name, words in (
            ("sampled_tokens", "Tokens that the engine has sampled."),
            ("prefilled_tokens", "Prompt tokens that went through the model."),
            ("reused_tokens", "Prompt tokens that were skipped, because they were cached."),
            ("busy_s", "Seconds in which the engine had requests."),
        ):
            gauge = Gauge(f"ludus_engine_{name}", words, registry=registry)
            gauge.set_function(partial(getattr, stats, name))


class Admission:
    """Counts the completions that run, `max_batch` at most, and that wait, `max_queue` at most."""

    def __init__(self, metrics: ModelMetrics, *, max_batch: int, max_queue: int) -> None:
        self.is_draining = False
        self._metrics = metrics
        self._max_queue, self._num_places = max_queue, max_batch + max_queue
        self._in_flight = 0

    @contextmanager
    def admit(self, num_choices: int) -> Iterator[None]:
        """Take places for the choices of a request, or raise 429 if there are not enough."""
        if self.is_draining:
            raise ApiError("The server is shutting down.", status=503, headers={"Retry-After": "5"})
        if num_choices > self._num_places:
            # Not 429: there will never be enough places.
            raise ApiError(
                f"A request may have at most {self._num_places} choices on this server, got "
                f"{num_choices}.",
                param="n",
            )
        if self._in_flight + num_choices > self._num_places:
            raise ApiError(
                f"The server is busy: {self._in_flight} requests are running or waiting, and "
                f"{self._max_queue} may wait. Try again later.",
                status=429,
                code="queue_full",
                headers={"Retry-After": "1"},
            )
        self._in_flight += num_choices
        self._metrics.in_flight.inc(num_choices)
        try:
            yield
        finally:
            self._in_flight -= num_choices
            self._metrics.in_flight.dec(num_choices)

    async def drain(self, timeout: float, force_exit: Callable[[], bool]) -> None:
        """Admit no more requests, and wait for running ones, `timeout` seconds at most."""
        self.is_draining = True
        deadline = time.monotonic() + timeout
        while self._in_flight and time.monotonic() < deadline and not force_exit():  # noqa: ASYNC110
            await asyncio.sleep(_POLL_INTERVAL_S)
