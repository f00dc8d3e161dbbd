"""Samples completions for requests: limits, stop sequences and cancellation."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from ludus.data.files import stable_hash
from ludus.data.tool_schema import JsonObject
from ludus.errors import ConfigError, LudusError
from ludus.policy.chat.template_kwargs import (
    check_kwargs_used,
    check_template_kwargs,
    with_default_kwargs,
)
from ludus.policy.engine.batcher import Completion
from ludus.policy.engine.sampling import SamplingParams
from ludus.policy.runtime import PolicyRuntime
from ludus.serve.model.admission import Admission
from ludus.serve.model.api_errors import ApiError
from ludus.serve.model.model_config import ModelServeConfig
from ludus.serve.model.model_metrics import ModelMetrics
from ludus.serve.model.prompt_limit import PromptLimit
from ludus.serve.model.request_schema import ChoicesBody
from ludus.serve.model.text_stream import TextStream

if TYPE_CHECKING:
    from ludus.policy.vision.images import ProcessedImage

_MAX_TEMPLATE_VARIANTS = 16
"""Sets of chat template arguments whose templates are kept."""

OnText = Callable[[str, Sequence[int], Sequence[float]], None]
"""Takes new text of a completion, its new ids and their log-probabilities."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """The ids of a prompt, with its images."""

    ids: tuple[int, ...]
    images: Sequence[ProcessedImage] = ()


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

    def choice_seed(self, index: int) -> int:
        return stable_hash(f"{self.seed}/{index}")


class Generator:
    """Samples for all clients of a server, with one engine."""

    def __init__(
        self,
        runtime: PolicyRuntime,
        config: ModelServeConfig,
        metrics: ModelMetrics,
        *,
        max_batch: int,
    ) -> None:
        self.runtime = runtime
        self.admission = Admission(metrics, max_batch=max_batch, max_queue=config.max_queue)
        self._config, self._metrics = config, metrics
        self.prompt_limit = PromptLimit(runtime.policy.tokenizer, runtime.context_length)
        self._variants: dict[str, PolicyRuntime] = {}

    def plan(self, body: ChoicesBody, prompts: Sequence[Prompt]) -> SamplingPlan:
        """Check the request's limits, and resolve how to sample it."""
        limit, context = self._config.max_tokens, self.runtime.context_length
        if body.n > self._config.max_choices:
            raise ApiError(f"n must be at most {self._config.max_choices}.", param="n")
        if body.token_limit is not None and body.token_limit > limit:
            raise ApiError(
                f"A reply may have at most {limit} tokens on this server, got {body.token_limit}.",
                param=body.token_limit_field,
            )
        for prompt in prompts:
            if not prompt.ids:
                raise ApiError("The prompt is empty.", param=body.prompt_field)
            if context is not None and len(prompt.ids) >= context:
                raise ApiError(
                    f"This model's maximum context length is {context} tokens, but the prompt has "
                    f"{len(prompt.ids)}.",
                    param=body.prompt_field,
                    code="context_length_exceeded",
                )
        options = body.sampling_options
        return SamplingPlan(
            max_tokens=body.token_limit or limit,
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
        prompt: Prompt,
        plan: SamplingPlan,
        *,
        index: int = 0,
        on_text: OnText | None = None,
        skip_special_tokens: bool = False,
    ) -> Generation:
        """Sample the completion with this index; `on_text` is called with it as it is sampled."""
        policy, start = self.runtime.policy, time.monotonic()
        stream = TextStream(
            policy.tokenizer,
            stop=plan.stop,
            stop_token_ids=policy.chat_format.stop_token_ids,
            skip_special_tokens=skip_special_tokens,
        )
        reached_stop: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

        def receive_tokens(ids: Sequence[int], logprobs: Sequence[float]) -> None:
            if not stream.ids:
                self._metrics.observe_first_token(time.monotonic() - start)
            num_before = len(stream.ids)
            text = stream.feed(ids, logprobs)
            if on_text is not None:
                on_text(text, stream.ids[num_before:], stream.logprobs[num_before:])
            if stream.reached_stop and not reached_stop.done():
                reached_stop.set_result(None)

        watches = on_text is not None or bool(plan.stop)
        sampling: asyncio.Future[Any] = asyncio.ensure_future(
            self.runtime.batcher.sample(
                prompt.ids,
                max_tokens=plan.max_tokens,
                stop_token_ids=policy.chat_format.stop_token_ids,
                sampling=plan.sampling,
                seed=plan.choice_seed(index),
                images=prompt.images,
                receive_tokens=receive_tokens if watches else None,
            )
        )
        try:
            if plan.stop:
                await asyncio.wait([sampling, reached_stop], return_when=asyncio.FIRST_COMPLETED)
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
        self._metrics.observe_completion(
            len(prompt.ids), len(completion.ids), time.monotonic() - start
        )
        return Generation(completion, stream.text if stream.reached_stop else None)

    async def drain(self, force_exit: Callable[[], bool] = lambda: False) -> None:
        """Accept no more requests, and wait for running ones up to `shutdown_timeout`."""
        await self.admission.drain(self._config.shutdown_timeout, force_exit)
        # Fails what still runs, so that its clients are told.
        await self.runtime.batcher.close()
