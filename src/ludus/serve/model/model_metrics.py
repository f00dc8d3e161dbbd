"""Prometheus metrics of a model server."""

from __future__ import annotations

from functools import partial

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from ludus.policy.engine.decode_stats import DecodeStats

_BUCKETS_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)


class ModelMetrics:
    """Counters of requests and tokens, and latencies."""

    def __init__(self, stats: DecodeStats) -> None:
        self._registry = registry = CollectorRegistry()
        self._requests = Counter(
            "ludus_model_requests",
            "Requests answered, by path and status.",
            ["path", "status"],
            registry=registry,
        )
        self._in_flight = Gauge(
            "ludus_model_requests_in_flight",
            "Completions that are being sampled or wait for it.",
            registry=registry,
        )
        self._prompt_tokens = Counter(
            "ludus_model_prompt_tokens", "Prompt tokens of finished completions.", registry=registry
        )
        self._completion_tokens = Counter(
            "ludus_model_completion_tokens", "Tokens of finished completions.", registry=registry
        )
        self._cancelled = Counter(
            "ludus_model_requests_cancelled", "Requests whose client went away.", registry=registry
        )
        self._seconds = Histogram(
            "ludus_model_completion_seconds",
            "Time of a completion, including its time in the queue.",
            registry=registry,
            buckets=_BUCKETS_S,
        )
        self._first_token_seconds = Histogram(
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

    def count_request(self, path: str, status: int) -> None:
        self._requests.labels(path, str(status)).inc()

    def count_cancelled(self) -> None:
        self._cancelled.inc()

    def set_in_flight(self, number: int) -> None:
        self._in_flight.set(number)

    def observe_first_token(self, seconds: float) -> None:
        self._first_token_seconds.observe(seconds)

    def observe_completion(self, prompt: int, completion: int, seconds: float) -> None:
        self._prompt_tokens.inc(prompt)
        self._completion_tokens.inc(completion)
        self._seconds.observe(seconds)

    def text(self) -> bytes:
        return generate_latest(self._registry)
