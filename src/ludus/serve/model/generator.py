"""Samples completions for requests: admission, metrics, stop sequences and cancellation."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from ludus.data.files import stable_hash
from ludus.data.tool_schema import JsonObject
from ludus.errors import ConfigError, LudusError
from ludus.policy.chat.template_kwargs import (
    check_kwargs_used,
    check_template_kwargs,
    with_default_kwargs,
)
from ludus.policy.engine.batcher import Completion
from ludus.policy.engine.engine_api import DecodeStats
from ludus.policy.engine.sampling import SamplingParams
from ludus.policy.runtime import PolicyRuntime
from ludus.serve.config import ModelServeConfig
from ludus.serve.model.api_errors import ApiError, context_error
from ludus.serve.model.requests import ChatBody
from ludus.serve.model.text_stream import TextStream

if TYPE_CHECKING:
    from ludus.policy.vision.processor import ProcessedImage

_MAX_TEMPLATE_VARIANTS = 16
"""Sets of chat template arguments whose templates are kept."""

_BUCKETS_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)
_POLL_INTERVAL_S = 0.1

OnText = Callable[[str, Sequence[int], Sequence[float]], None]
"""Takes new text of a completion, its new ids and their log-probabilities."""


@dataclass(frozen=True, slots=True)
class Generation:
    """A sampled completion."""

    completion: Completion
    text: str | None
    """The text up to the stop sequence that ended it, if one did."""

    @property
    def finish_reason(self) -> Literal["stop", "length"]:
        is_complete = self.completion.stopped or self.text is not None
        return "stop" if is_complete else "length"


@dataclass(frozen=True, slots=True)
class SamplingPlan:
    """How the completions of a request are sampled."""

    max_tokens: int
    sampling: SamplingParams
    stop: tuple[str, ...]
    seed: int


class ModelMetrics:
    """Counters of requests and tokens, and latencies."""

    def __init__(self, stats: DecodeStats) -> None:
        self.registry = registry = CollectorRegistry()

        def counter(name: str, words: str, labels: Sequence[str] = ()) -> Counter:
            return Counter(f"ludus_model_{name}", words, labels, registry=registry)

        def histogram(name: str, words: str) -> Histogram:
            name = f"ludus_model_{name}"
            return Histogram(name, words, registry=registry, buckets=_BUCKETS_S)

        self.requests = counter(
            "requests", "Requests answered, by path and status.", ["path", "status"]
        )
        self.cancelled = counter("requests_cancelled", "Requests whose client went away.")
        self.prompt_tokens = counter("prompt_tokens", "Prompt tokens of finished completions.")
        self.completion_tokens = counter("completion_tokens", "Tokens of finished completions.")
        self.completion_seconds = histogram(
            "completion_seconds", "Time of a completion, including its time in the queue."
        )
        self.first_token_seconds = histogram(
            "first_token_seconds", "Time until the first tokens of a streamed completion."
        )
        self.in_flight = Gauge(
            "ludus_model_requests_in_flight",
            "Completions that are being sampled or wait for it.",
            registry=registry,
        )
        for name, words in (
            ("sampled_tokens", "Tokens that the engine has sampled."),
            ("prefilled_tokens", "Prompt tokens that went through the model."),
            ("reused_tokens", "Prompt tokens that were skipped, because they were cached."),
            ("busy_s", "Seconds in which the engine had requests."),
        ):
            gauge = Gauge(f"ludus_engine_{name}", words, registry=registry)
            gauge.set_function(partial(getattr, stats, name))


class Generator:
    """Samples for all clients of a server, with one engine."""

    def __init__(self, runtime: PolicyRuntime, config: ModelServeConfig, *, max_batch: int) -> None:
        self.runtime = runtime
        self.is_draining = False
        self.metrics = ModelMetrics(runtime.batcher.stats)
        self._config = config
        self._variants: dict[str, PolicyRuntime] = {}
        self._num_places, self._in_flight = max_batch + config.max_queue, 0

    @contextmanager
    def admit(self, num_choices: int) -> Iterator[None]:
        """Take places for the choices of a request, or raise 429 if there are not enough.

        `max_batch` completions run at once, and `max_queue` may wait.
        """
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
                f"{self._config.max_queue} may wait. Try again later.",
                status=429,
                code="queue_full",
                headers={"Retry-After": "1"},
            )
        self._in_flight += num_choices
        self.metrics.in_flight.inc(num_choices)
        try:
            yield
        finally:
            self._in_flight -= num_choices
            self.metrics.in_flight.dec(num_choices)

    def plan(self, body: ChatBody, prompt_ids: Sequence[int]) -> SamplingPlan:
        """Check the request's limits, and resolve how to sample it."""
        limit, context = self._config.max_tokens, self.runtime.context_length
        if body.n > self._config.max_choices:
            raise ApiError(f"n must be at most {self._config.max_choices}.", param="n")
        max_tokens = body.max_completion_tokens or body.max_tokens or limit
        if max_tokens > limit:
            raise ApiError(
                f"A reply may have at most {limit} tokens on this server, got {max_tokens}.",
                param="max_completion_tokens" if body.max_completion_tokens else "max_tokens",
            )
        if not prompt_ids:
            raise ApiError("The prompt is empty.", param="messages")
        if context is not None and len(prompt_ids) >= context:
            raise context_error(context, str(len(prompt_ids)))
        options = body.sampling_options
        return SamplingPlan(
            max_tokens=max_tokens,
            # The server's top_p and top_k belong to its own temperature.
            sampling=SamplingParams(**options)
            if "temperature" in options
            else replace(self.runtime.sampling, **options),
            stop=body.stop_sequences,
            seed=secrets.randbits(63) if body.seed is None else body.seed,
        )

    def with_template_kwargs(self, kwargs: JsonObject) -> PolicyRuntime:
        """The runtime with these arguments of the chat template, in place of the defaults."""
        if not kwargs:
            return self.runtime
        key = str(sorted(kwargs.items(), key=lambda item: item[0]))
        if key not in self._variants:
            chat_format = self.runtime.policy.chat_format
            merged = {**chat_format.chat_template_kwargs, **kwargs}
            try:
                check_template_kwargs(kwargs)
                check_kwargs_used(kwargs, chat_format.template, template_name=chat_format.name)
            except ConfigError as error:
                raise ApiError(str(error), param="chat_template_kwargs") from error
            template = with_default_kwargs(chat_format.template, merged)
            changed = replace(chat_format, template=template, chat_template_kwargs=merged)
            policy = replace(self.runtime.policy, chat_format=changed)
            if len(self._variants) >= _MAX_TEMPLATE_VARIANTS:
                self._variants.clear()
            self._variants[key] = PolicyRuntime(policy, self.runtime.batcher, self.runtime.sampling)
        return self._variants[key]

    async def generate(
        self,
        prompt_ids: tuple[int, ...],
        plan: SamplingPlan,
        *,
        index: int,
        images: Sequence[ProcessedImage],
        on_text: OnText | None = None,
    ) -> Generation:
        """Sample the completion with this index; `on_text` gets its text meanwhile."""
        policy, start = self.runtime.policy, time.monotonic()
        stream = TextStream(
            policy.tokenizer,
            stop=plan.stop,
            stop_token_ids=policy.chat_format.stop_token_ids,
        )
        reached_stop: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def receive_tokens(ids: Sequence[int], logprobs: Sequence[float]) -> None:
            if not stream.ids:
                self.metrics.first_token_seconds.observe(time.monotonic() - start)
            num_before = len(stream.ids)
            text = stream.feed(ids, logprobs)
            if on_text is not None:
                on_text(text, stream.ids[num_before:], stream.logprobs[num_before:])
            if stream.reached_stop and not reached_stop.done():
                reached_stop.set_result(None)

        watches = on_text is not None or bool(plan.stop)
        sampling: asyncio.Future[Completion] = asyncio.ensure_future(
            self.runtime.batcher.sample(
                prompt_ids,
                max_tokens=plan.max_tokens,
                stop_token_ids=policy.chat_format.stop_token_ids,
                sampling=plan.sampling,
                seed=stable_hash(f"{plan.seed}/{index}"),
                images=images,
                receive_tokens=receive_tokens if watches else None,
            )
        )
        try:
            if plan.stop:
                waiting: list[asyncio.Future[Any]] = [sampling, reached_stop]
                await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            completion = None if stream.reached_stop else await sampling
        except (LudusError, asyncio.CancelledError):
            raise
        except Exception as error:
            reason = " ".join(str(error).split())[:300]
            raise ApiError(
                f"The model failed: {type(error).__name__}: {reason}", status=500
            ) from error
        finally:
            sampling.cancel()
        rest = stream.finish() if watches else ""
        if rest and on_text is not None:
            on_text(rest, (), ())
        if completion is None or stream.reached_stop:
            completion = Completion(tuple(stream.ids), tuple(stream.logprobs), stopped=False)
        self.metrics.prompt_tokens.inc(len(prompt_ids))
        self.metrics.completion_tokens.inc(len(completion.ids))
        self.metrics.completion_seconds.observe(time.monotonic() - start)
        return Generation(completion, stream.text if stream.reached_stop else None)

    async def drain(self, force_exit: Callable[[], bool] = lambda: False) -> None:
        """Accept no more requests, and wait for running ones up to `shutdown_timeout`."""
        self.is_draining = True
        deadline = time.monotonic() + self._config.shutdown_timeout
        while self._in_flight and time.monotonic() < deadline and not force_exit():  # noqa: ASYNC110
            await asyncio.sleep(_POLL_INTERVAL_S)
        # Fails the running requests, so that clients get an error.
        await self.runtime.batcher.close()
