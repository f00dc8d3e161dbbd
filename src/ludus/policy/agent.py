"""An agent that samples from a local model and records every token of its episodes.

The token ids of an episode are append-only: sampled ids are never decoded and tokenized again, and
each message is tokenized once. So the recorded ids and log-probabilities are exactly those that the
model saw and sampled.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

from ludus.agents.agent import Agent, EpisodeContext, FinishReason, Player, Reply
from ludus.data.episode import Tokens, Usage
from ludus.data.messages import Message
from ludus.data.stable_hash import stable_hash
from ludus.data.tool_schema import JsonObject
from ludus.environment.worker_threads import WorkerThread
from ludus.errors import AgentError, ConfigError, LudusError
from ludus.policy.chat.reply_parser import ReplyParser
from ludus.policy.chat.template_kwargs import check_template_kwargs, saved_template_kwargs
from ludus.policy.engine.batcher import Completion, RequestBatcher, SamplingParams
from ludus.policy.engine.engine_api import check_prompt_fits
from ludus.policy.engine.engine_selection import HF_MAX_BATCH, choose_engine
from ludus.policy.engine.hf_decoder import max_context_length
from ludus.policy.fingerprint import fingerprint
from ludus.policy.preflight import check_model
from ludus.policy.sampling_config import (
    describe_sampling,
    recommended_sampling,
    recommended_sampling_for,
    resolve_sampling,
    validate_sampling_options,
)

if TYPE_CHECKING:
    from ludus.policy.load import Policy
    from ludus.policy.vision.images import ProcessedImage

DEFAULT_MAX_TOKENS = 2048
"""Token limit of a reply where the caller sets none."""
PROMPT_CACHE_SIZE = 256
"""Tokenized initial prompts; the cache is cleared when it is full. Attempts at one task share a
prompt and start close together, so a small cache is enough."""


@dataclass(frozen=True)
class AgentRuntime:
    """What an agent samples with: a policy, its running engine and the sampling parameters."""

    policy: Policy
    batcher: RequestBatcher
    sampling: SamplingParams
    _prompt_cache: dict[str, tuple[int, ...]] = field(default_factory=dict)

    @cached_property
    def reply_parser(self) -> ReplyParser:
        """Parses the replies that the agent samples."""
        chat_format = self.policy.chat_format
        return ReplyParser(
            self.policy.tokenizer, chat_format.response_template, chat_format.stop_token_ids
        )

    def initial_prompt_ids(
        self, messages: Sequence[Message], tools: Sequence[JsonObject]
    ) -> tuple[int, ...]:
        """Return the ids of an episode's first prompt, cached across attempts at a task."""
        from ludus.policy.chat import incremental_prompt

        cache, policy = self._prompt_cache, self.policy
        key = "\n".join([*(message.model_dump_json() for message in messages), json.dumps(tools)])
        if key not in cache:
            if len(cache) >= PROMPT_CACHE_SIZE:
                cache.clear()
            ids = incremental_prompt.initial_prompt_ids(
                policy.tokenizer, policy.chat_format, messages, tools
            )
            cache[key] = tuple(ids)
        return cache[key]


class PolicyAgent(Agent):
    """An agent for a transformers model that runs in this process.

    Args:
        model: A folder, a GGUF file, a Hub id or `smollm2`; or a loaded policy.
        temperature: 0 for greedy decoding. Default: what the model's generation config
            recommends, otherwise 1.
        extra: `top_p`, `top_k` and `seed`; another seed gives other replies to the same tasks.
        device: Default: the fastest one.
        dtype: Default: the fastest one on the device.
        chat_template_kwargs: Arguments of the chat template, such as `enable_thinking`. Default:
            those that the model was saved with.
        max_batch: Most replies that are sampled at once. Default: depends on the engine.
        fast: Whether to decode with `ludus.policy.triton_engine`. Default: where it is supported.
    """

    provider = "hf"

    def __init__(
        self,
        model: str | Policy,
        *,
        temperature: float | None = None,
        extra: Mapping[str, Any] | None = None,
        device: str | None = None,
        dtype: str | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
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
        self._runtime: AgentRuntime | None = None
        self._tokens_before_close = 0
        """Tokens sampled by batchers that are closed."""
        self._load_lock = asyncio.Lock()

    def describe(self) -> JsonObject:
        """Describe the model and how it is sampled. Works before the model is loaded."""
        optional = {
            "weights": self._fingerprint,
            "dtype": self._dtype,
            "chat_template_kwargs": self._effective_template_kwargs,
        }
        return {
            "provider": self.provider,
            "model": self.model,
            **describe_sampling(self._sampling_options, self._recommended_sampling),
            **{name: value for name, value in optional.items() if value},
        }

    @cached_property
    def _recommended_sampling(self) -> SamplingParams | None:
        if self._given_policy is None:
            return recommended_sampling_for(self.model)
        return recommended_sampling(self._given_policy.model)

    @cached_property
    def _fingerprint(self) -> str | None:
        """Of the weights: the files under a name may change from one day to the next."""
        return fingerprint(self.model) if self._given_policy is None else self._given_policy.weights

    @cached_property
    def _effective_template_kwargs(self) -> JsonObject:
        """The given chat template arguments, over those saved with the model."""
        if self._given_policy is not None:
            return dict(self._given_policy.chat_format.chat_template_kwargs)
        return {**saved_template_kwargs(self.model), **self._given_template_kwargs}

    @property
    def concurrency_limit(self) -> int:
        return self.max_batch

    @property
    def local_model(self) -> str:
        return self.model

    @property
    def sampled_tokens(self) -> int:
        runtime = self._runtime
        return self._tokens_before_close + (
            0 if runtime is None else runtime.batcher.stats.sampled_tokens
        )

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

    async def prepare(self, environments: Sequence[str] = ()) -> None:
        await self.ensure_loaded()

    async def ensure_loaded(self) -> AgentRuntime:
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

    def _load(self) -> AgentRuntime:
        from ludus.policy.load import load

        if self._given_policy is not None:
            return self._start_engine(self._given_policy)
        policy = load(
            self.model,
            device=self._device,
            dtype=self._dtype,
            chat_template_kwargs=self._given_template_kwargs,
        )
        return self._start_engine(policy)

    def _start_engine(self, policy: Policy) -> AgentRuntime:
        choice = choose_engine(
            policy, fast=self._fast, dtype=self._dtype, max_batch=self._max_batch
        )
        self.engine_description, self.max_batch = choice.description, choice.max_batch
        batcher = RequestBatcher(
            policy.model,
            max_batch=choice.max_batch,
            engine=choice.engine,
            batch_wait_s=choice.batch_wait_s,
        )
        return AgentRuntime(policy, batcher, resolve_sampling(self._sampling_options, policy.model))

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
    """One episode: all of its token ids so far, and which of them the model sampled."""

    def __init__(self, runtime: AgentRuntime, context: EpisodeContext, seed: int) -> None:
        self._runtime = runtime
        self._environment = context.environment
        self._tools = [tool.to_openai() for tool in context.tools]
        self._seed = f"{seed}/{context.seed}/{context.member}"
        self._ids: list[int] = []
        self._logprobs: list[float | None] = []
        self._mask: list[Literal[0, 1]] = []
        self._images: list[ProcessedImage] = []
        """All images so far, in the order of their placeholders among the ids."""
        self._num_messages = 0
        """How many messages are in the ids already."""
        self._last_input_ids: Sequence[int] = ()
        """The prompt ids between the previous reply and the next one."""
        self._last_reply: Message | None = None
        self._reply_stopped = True
        self._turn = 0

    async def act(self, messages: Sequence[Message], *, max_tokens: int | None = None) -> Reply:
        await self._append_messages(messages)
        prompt = tuple(self._ids)
        if self._turn == 0:
            # In later turns a full context is a normal end of the episode (FinishReason.LENGTH).
            check_prompt_fits(prompt, max_context_length(self._runtime.policy.model))
        completion = await self._sample(
            prompt, DEFAULT_MAX_TOKENS if max_tokens is None else max_tokens
        )
        self._reply_stopped = completion.stopped
        self._append_tokens(completion.ids, completion.logprobs, 1)
        call_id_prefix = f"call_{len(prompt)}"
        self._last_reply = self._runtime.reply_parser(
            self._last_input_ids, completion.ids, self._tools, call_id_prefix=call_id_prefix
        )
        return Reply(
            self._last_reply,
            finish_reason=FinishReason.STOP if completion.stopped else FinishReason.LENGTH,
            usage=Usage(prompt_tokens=len(prompt), completion_tokens=len(completion.ids)),
            tokens=Tokens(
                ids=tuple(self._ids), logprobs=tuple(self._logprobs), mask=tuple(self._mask)
            ),
        )

    async def _append_messages(self, messages: Sequence[Message]) -> None:
        """Append the ids of the messages since the model's last reply."""
        from ludus.policy.vision.processor import process_images

        policy = self._runtime.policy
        new = messages[self._num_messages :]
        replies = [message for message in new if message.role == "assistant"]
        if self._ids and replies not in ([], [self._last_reply]):
            self._start_over()
            new = messages
        images = await process_images(policy, self._environment, new)
        if policy.vision is None:
            ids = self._render_messages(new)
        else:
            ids = self._render_messages([policy.vision.message_to_text(message) for message in new])
            ids = policy.vision.expand_placeholders(ids, images)
        self._images += images
        self._num_messages, self._last_input_ids = len(messages), ids
        self._append_tokens(ids, [None] * len(ids), 0)

    def _start_over(self) -> None:
        """Forget all tokens: others have replied since, such as a tutor's student.

        The whole conversation is then a prompt, as for a model that sees it for the first time.
        """
        self._ids, self._logprobs, self._mask, self._images = [], [], [], []
        self._num_messages = 0

    def _render_messages(self, new: Sequence[Message]) -> Sequence[int]:
        """Tokenize the first prompt, or in later turns what follows the model's last reply."""
        from ludus.policy.chat import incremental_prompt

        if not self._ids:
            return self._runtime.initial_prompt_ids(new, self._tools)
        policy = self._runtime.policy
        reply = new[0] if new and new[0].role == "assistant" else None
        return incremental_prompt.continuation_ids(
            policy.tokenizer,
            policy.chat_format,
            new[0 if reply is None else 1 :],
            self._tools,
            turn_ended=self._reply_stopped,
            reply=reply,
        )

    async def _sample(self, prompt: tuple[int, ...], max_tokens: int) -> Completion:
        self._turn += 1
        try:
            return await self._runtime.batcher.sample(
                prompt,
                max_tokens=max_tokens,
                stop_token_ids=self._runtime.policy.chat_format.stop_token_ids,
                sampling=self._runtime.sampling,
                seed=stable_hash(f"{self._seed}/{self._turn}"),
                images=self._images,
            )
        except LudusError:
            raise
        except Exception as error:
            reason = " ".join(str(error).split())[:300]
            raise AgentError(f"The model failed: {type(error).__name__}: {reason}") from error

    def _append_tokens(
        self, ids: Sequence[int], logprobs: Sequence[float | None], sampled: Literal[0, 1]
    ) -> None:
        self._ids += ids
        self._logprobs += logprobs
        self._mask += [sampled] * len(ids)
