"""An agent that samples from a local model and records every token of its episodes."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING

from ludus.agents.agent import (
    NO_ENVIRONMENTS,
    Agent,
    EnvironmentTools,
    EpisodeContext,
    FinishReason,
    Player,
    Reply,
)
from ludus.data.episode import Usage
from ludus.data.files import stable_hash
from ludus.data.messages import Message
from ludus.data.tool_schema import JsonObject
from ludus.environment.worker_threads import WorkerThread
from ludus.errors import AgentError, ConfigError, LudusError
from ludus.policy.chat.template_kwargs import check_template_kwargs, saved_template_kwargs
from ludus.policy.engine.batcher import RequestBatcher
from ludus.policy.engine.engine_api import DecodeStats, check_prompt_fits
from ludus.policy.model_ref import check_model, fingerprint_model
from ludus.policy.runtime import HF_MAX_BATCH, PolicyRuntime, start_engine
from ludus.policy.sampled_conversation import SampledConversation
from ludus.policy.sampling_config import (
    describe_sampling,
    recommended_sampling,
    recommended_sampling_for,
    resolve_sampling,
    validate_sampling_options,
)

if TYPE_CHECKING:
    from ludus.policy.load import Policy

DEFAULT_MAX_TOKENS = 2048
"""Token limit of a reply if the caller sets none."""


class PolicyAgent(Agent):
    """An agent for a transformers model that runs in this process.

    Args:
        model: A folder, a Hub id or `smollm2`; or a loaded policy.
        temperature: 0 for greedy decoding. Default: from the generation config, otherwise 1.
        extra: `top_p`, `top_k` and `seed`; another seed gives other replies to the same tasks.
        device, dtype: Default: the fastest ones.
        chat_template_kwargs: Such as `enable_thinking`. Default: those saved with the model.
        max_batch: Most replies that are sampled at once. Default: depends on the engine.
        fast: Whether to decode with `ludus.policy.triton_engine`. Default: if it is supported.
    """

    provider = "hf"

    def __init__(
        self,
        model: str | Policy,
        *,
        temperature: float | None = None,
        extra: Mapping[str, object] | None = None,
        device: str | None = None,
        dtype: str | None = None,
        chat_template_kwargs: Mapping[str, object] | None = None,
        max_batch: int | None = None,
        fast: bool | None = None,
    ) -> None:
        name = model if isinstance(model, str) else model.name
        self.model = name.rstrip("/") or name
        self.max_batch = max_batch or HF_MAX_BATCH
        self.engine_description = "not loaded yet"
        """The engine that decodes and, for the HF decoder, why it was chosen."""
        self._max_batch, self._fast = max_batch, fast
        self._given_policy = None if isinstance(model, str) else model
        self._device, self._dtype = device, dtype
        self._sampling_options = validate_sampling_options(temperature, extra or {})
        self._given_template_kwargs = dict(chat_template_kwargs or {})
        check_template_kwargs(self._given_template_kwargs)
        if self._given_policy is not None and self._given_template_kwargs:
            raise ConfigError(
                "`chat_template_kwargs` cannot be set for a policy that is already loaded. Pass "
                "them to `ludus.policy.load.load`."
            )
        self._runtime: PolicyRuntime | None = None
        self._tokens_before_close = 0
        """Tokens sampled by batchers that are closed."""
        self._load_lock = asyncio.Lock()

    def describe(self) -> JsonObject:
        """Describe the model and how it is sampled. Works before the model is loaded."""
        return dict(self._description)

    @cached_property
    def _description(self) -> JsonObject:
        """The description, cached because the files under a name may change during the run."""
        policy = self._given_policy
        if policy is None:
            weights = fingerprint_model(self.model)
            recommended = recommended_sampling_for(self.model)
            template_kwargs = {**saved_template_kwargs(self.model), **self._given_template_kwargs}
        else:
            weights, recommended = policy.weights, recommended_sampling(policy.model)
            template_kwargs = policy.chat_format.chat_template_kwargs
        optional = {
            "weights": weights,
            "dtype": self._dtype,
            "chat_template_kwargs": template_kwargs,
        }
        return {
            "provider": self.provider,
            "model": self.model,
            **describe_sampling(self._sampling_options, recommended),
            **{name: value for name, value in optional.items() if value},
        }

    @property
    def concurrency_limit(self) -> int:
        return self.max_batch

    @property
    def local_model(self) -> str:
        return self.model

    @property
    def sampled_tokens(self) -> int:
        stats = self._runtime.batcher.stats if self._runtime else DecodeStats()
        return self._tokens_before_close + stats.sampled_tokens

    @property
    def stall_expected(self) -> bool:
        """True while the engine is decoding: a large batch on a CPU takes minutes."""
        return self._runtime is not None and self._runtime.batcher.is_working

    @property
    def has_price(self) -> bool:
        return False

    def check(self) -> None:
        if self._given_policy is None:
            check_model(self.model, device=self._device, dtype=self._dtype)

    async def prepare(self, environments: EnvironmentTools = NO_ENVIRONMENTS) -> None:
        await self.ensure_loaded()

    @property
    def runtime(self) -> PolicyRuntime:
        """The loaded model; `prepare` loads it."""
        if self._runtime is None:
            raise AgentError("The model is not loaded. Await `prepare` first.")
        return self._runtime

    async def ensure_loaded(self) -> PolicyRuntime:
        """Return the loaded model; concurrent callers share one load."""
        async with self._load_lock:
            if self._runtime is None:
                # A daemon thread instead of `asyncio.to_thread`: the executor's threads are joined
                # at exit, so Ctrl-C would have to wait for a load that takes minutes.
                worker = WorkerThread()
                try:
                    self._runtime = await worker.submit(self._load)
                finally:
                    worker.stop()
            return self._runtime

    def _load(self) -> PolicyRuntime:
        from ludus.policy.load import load

        policy = self._given_policy or load(
            self.model,
            device=self._device,
            dtype=self._dtype,
            chat_template_kwargs=self._given_template_kwargs,
        )
        batcher = self._start_engine(policy)
        return PolicyRuntime(
            policy, batcher, resolve_sampling(self._sampling_options, policy.model)
        )

    def _start_engine(self, policy: Policy) -> RequestBatcher:
        batcher, self.engine_description = start_engine(
            policy, fast=self._fast, dtype=self._dtype, max_batch=self._max_batch
        )
        self.max_batch = batcher.max_batch
        return batcher

    async def begin(self, context: EpisodeContext) -> Player:
        return _PolicyPlayer(
            await self.ensure_loaded(), context, self._sampling_options.get("seed", 0)
        )

    async def close(self) -> None:
        if self._runtime is not None:
            self._tokens_before_close = self.sampled_tokens
            batcher, self._runtime = self._runtime.batcher, None
            await batcher.close()


class _PolicyPlayer(Player):
    """One episode."""

    def __init__(self, runtime: PolicyRuntime, context: EpisodeContext, seed: int) -> None:
        self._runtime = runtime
        self._seed = f"{seed}/{context.seed}/{context.member}"
        tools = [tool.to_openai() for tool in context.tools]
        self._conversation = SampledConversation(runtime, tools, source=context.environment)
        self._turn = 0

    async def act(self, messages: Sequence[Message], *, max_tokens: int | None = None) -> Reply:
        runtime, conversation = self._runtime, self._conversation
        prompt = await conversation.set_prompt(messages)
        if self._turn == 0:
            # In later turns a full context is a normal end of the episode (FinishReason.LENGTH).
            check_prompt_fits(prompt, runtime.context_length)
        self._turn += 1
        try:
            completion = await runtime.batcher.sample(
                prompt,
                max_tokens=DEFAULT_MAX_TOKENS if max_tokens is None else max_tokens,
                stop_token_ids=runtime.policy.chat_format.stop_token_ids,
                sampling=runtime.sampling,
                seed=stable_hash(f"{self._seed}/{self._turn}"),
                images=conversation.images,
            )
        except LudusError:
            raise
        except Exception as error:
            reason = " ".join(str(error).split())[:300]
            raise AgentError(f"The model failed: {type(error).__name__}: {reason}") from error
        return Reply(
            conversation.add_reply(completion),
            finish_reason=FinishReason.STOP if completion.stopped else FinishReason.LENGTH,
            usage=Usage(prompt_tokens=len(prompt), completion_tokens=len(completion.ids)),
            tokens=conversation.tokens,
        )
