"""A local model as an agent: it plays many episodes at once, and keeps every token that it sampled.

Within an episode ids are only ever added: what the model sampled stays as it was sampled, and what
it is shown is tokenized once. How a conversation is written in ids is `ludus.policy.chat.incremental_prompt`'
business, how ids are sampled `ludus.policy.engine.batcher`'s.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

from ludus.agents.agent import Agent, EpisodeContext, FinishReason, Player, Reply
from ludus.data.episode import Tokens, Usage, digest_64
from ludus.data.messages import Message
from ludus.data.tool_schema import JsonObject
from ludus.environment.worker_threads import WorkerThread
from ludus.errors import AgentError, ConfigError, LudusError
from ludus.policy.chat.reply_parser import ReplyParser
from ludus.policy.chat.template_defaults import check_template_kwargs, saved_template_kwargs
from ludus.policy.engine.batcher import Completion, RequestBatcher, SamplingParams
from ludus.policy.engine.engine_api import check_prompt_fits, max_context_length
from ludus.policy.engine.engine_selection import HF_MAX_BATCH, choose_engine
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
"""Of a reply for which nobody has set a limit."""
PROMPT_CACHE_SIZE = 256
"""Openings, after which all are forgotten: attempts at a task come together."""


@dataclass(frozen=True)
class LoadedPolicy:
    """A model that can be asked."""

    policy: Policy
    batcher: RequestBatcher
    sampling: SamplingParams
    _prompt_cache: dict[str, tuple[int, ...]] = field(default_factory=dict)

    @cached_property
    def reply_parser(self) -> ReplyParser:
        policy = self.policy
        return ReplyParser(
            policy.tokenizer,
            policy.chat_format.response_template,
            policy.chat_format.stop_token_ids,
        )

    def initial_prompt_ids(
        self, messages: Sequence[Message], tools: Sequence[JsonObject]
    ) -> tuple[int, ...]:
        """The ids of how an episode begins, which is the same for all attempts at a task."""
        from ludus.policy.chat import incremental_prompt

        key = "\n".join([*(each.model_dump_json() for each in messages), json.dumps(tools)])
        known = self._prompt_cache
        if key not in known:
            if len(known) >= PROMPT_CACHE_SIZE:
                known.clear()
            policy = self.policy
            known[key] = tuple(
                incremental_prompt.initial_prompt_ids(
                    policy.tokenizer, policy.chat_format, messages, tools
                )
            )
        return known[key]


class PolicyAgent(Agent):
    """A model that runs in this process, under transformers.

    Args:
        model: a folder, a GGUF file, a name on the Hub, `smollm2`; or a policy that is loaded.
        temperature: 0 for the likeliest token. If not given, the model is sampled as its makers
            say in its generation config, and with temperature 1 where they say nothing.
        extra: `top_p`, `top_k`, and a `seed` under which the same tasks get other replies.
        device: the fastest if not given.
        dtype: the one that the device is fastest in if not given.
        chat_template_kwargs: arguments of the chat template, such as `enable_thinking`; if not
            given, those that the model was saved with.
        max_batch: the most replies that are sampled at once; if not given, what suits the engine.
        fast: whether own kernels decode (see `ludus.policy.triton_engine`); if not given, where they can.
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
        """One line of how it decodes, and if plainly, why."""
        self._max_batch, self._fast = max_batch, fast
        self._given_policy = None if isinstance(model, str) else model
        self._device, self._dtype = device, dtype
        self._sampling_options = validate_sampling_options(temperature, extra or {})
        self._given_template_kwargs = dict(chat_template_kwargs or {})
        check_template_kwargs(self._given_template_kwargs)
        if self._given_policy is not None and self._given_template_kwargs:
            raise ConfigError("chat_template_kwargs are given to `load` where a policy is loaded.")
        self._loaded_policy: LoadedPolicy | None = None
        self._tokens_before_close = 0
        """Tokens of generators that are closed."""
        self._load_lock = asyncio.Lock()

    def describe(self) -> JsonObject:
        """Who plays, and how its tokens are chosen. It is asked before the model is loaded."""
        who: JsonObject = {"provider": self.provider, "model": self.model}
        more = {
            "weights": self._fingerprint,
            "dtype": self._dtype,
            "chat_template_kwargs": self._effective_template_kwargs,
        }
        how = describe_sampling(self._sampling_options, self._recommended_sampling)
        return who | how | {name: value for name, value in more.items() if value}

    @cached_property
    def _recommended_sampling(self) -> SamplingParams | None:
        loaded = self._given_policy
        return (
            recommended_sampling_for(self.model)
            if loaded is None
            else recommended_sampling(loaded.model)
        )

    @cached_property
    def _fingerprint(self) -> str | None:
        """Their fingerprint: under the same name there may be other ones tomorrow."""
        return fingerprint(self.model) if self._given_policy is None else self._given_policy.weights

    @cached_property
    def _effective_template_kwargs(self) -> JsonObject:
        """The arguments of the chat template: those given, over those saved with the model."""
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
        ready = self._loaded_policy
        return self._tokens_before_close + (
            0 if ready is None else ready.batcher.stats.sampled_tokens
        )

    @property
    def stall_expected(self) -> bool:
        """While it decodes: on a CPU a reply of many at once takes minutes."""
        return self._loaded_policy is not None and self._loaded_policy.batcher.is_working

    @property
    def has_price(self) -> bool:
        return False

    def check(self) -> None:
        if self._given_policy is None:
            check_model(self.model, device=self._device, dtype=self._dtype)

    async def prepare(self, environments: Sequence[str] = ()) -> None:
        await self.ensure_loaded()

    async def ensure_loaded(self) -> LoadedPolicy:
        """The model, loaded once, however many episodes begin with it."""
        async with self._load_lock:
            if self._loaded_policy is None:
                self._loaded_policy = await self._load_in_thread()
            return self._loaded_policy

    async def _load_in_thread(self) -> LoadedPolicy:
        # In a thread that nothing waits for: a load that takes minutes can be interrupted.
        worker = WorkerThread()
        try:
            ready: LoadedPolicy = await worker.submit(
                lambda: self._start_engine(self._given_policy or self._load())
            )
            return ready
        finally:
            worker.stop()

    def _load(self) -> Policy:
        from ludus.policy.load import load

        return load(
            self.model,
            device=self._device,
            dtype=self._dtype,
            chat_template_kwargs=self._given_template_kwargs,
        )

    def _start_engine(self, policy: Policy) -> LoadedPolicy:
        chosen = choose_engine(
            policy, fast=self._fast, dtype=self._dtype, max_batch=self._max_batch
        )
        self.engine_description, self.max_batch = chosen.description, chosen.max_batch
        generator = RequestBatcher(
            policy.model,
            max_batch=chosen.max_batch,
            engine=chosen.engine,
            batch_wait_s=chosen.batch_wait_s,
        )
        return LoadedPolicy(
            policy, generator, resolve_sampling(self._sampling_options, policy.model)
        )

    async def begin(self, context: EpisodeContext) -> Player:
        return _PolicyPlayer(
            await self.ensure_loaded(), context, self._sampling_options.get("seed", 0)
        )

    async def close(self) -> None:
        if self._loaded_policy is not None:
            self._tokens_before_close = self.sampled_tokens
            generator, self._loaded_policy = self._loaded_policy.batcher, None
            await generator.close()


class _PolicyPlayer(Player):
    """One episode: all of its ids so far, and which of them the model sampled."""

    def __init__(self, loaded: LoadedPolicy, situation: EpisodeContext, seed: int) -> None:
        self._loaded = loaded
        self._environment = situation.environment
        self._tools = [tool.to_openai() for tool in situation.tools]
        self._seed = f"{seed}/{situation.seed}/{situation.member}"
        self._ids: list[int] = []
        self._logprobs: list[float | None] = []
        self._mask: list[Literal[0, 1]] = []
        self._images: list[ProcessedImage] = []
        """What it has been shown, in the order of their places among the ids."""
        self._num_messages = 0
        """Messages that are in the ids already."""
        self._last_input_ids: Sequence[int] = ()
        """What was written since the model last spoke, up to where its reply begins."""
        self._reply_stopped = True
        self._turn = 0

    async def act(self, messages: Sequence[Message], *, max_tokens: int | None = None) -> Reply:
        await self._append_messages(messages)
        prompt = tuple(self._ids)
        if self._turn == 0:
            # Later it is the episode that has filled the context, and that is how it ends.
            check_prompt_fits(prompt, max_context_length(self._loaded.policy.model))
        sampled = await self._sample(
            prompt, DEFAULT_MAX_TOKENS if max_tokens is None else max_tokens
        )
        self._append_reply(sampled)
        return Reply(
            self._loaded.reply_parser(
                self._last_input_ids, sampled.ids, self._tools, call_id_prefix=f"call_{len(prompt)}"
            ),
            finish_reason=FinishReason.STOP if sampled.stopped else FinishReason.LENGTH,
            usage=Usage(prompt_tokens=len(prompt), completion_tokens=len(sampled.ids)),
            tokens=Tokens(
                ids=tuple(self._ids), logprobs=tuple(self._logprobs), mask=tuple(self._mask)
            ),
        )

    async def _append_messages(self, messages: Sequence[Message]) -> None:
        """Add what has been said since this model's last words."""
        from ludus.policy.vision.image_guard import process_images

        policy = self._loaded.policy
        since = messages[self._num_messages :]
        pictures = await process_images(policy, self._environment, since)
        if policy.vision is None:
            ids = self._render_messages(since)
        else:
            said = self._render_messages([policy.vision.message_to_text(each) for each in since])
            ids = policy.vision.expand_placeholders(said, pictures)
        self._images += pictures
        self._num_messages, self._last_input_ids = len(messages), ids
        self._append_tokens(ids, [None] * len(ids), 0)

    def _render_messages(self, since: Sequence[Message]) -> Sequence[int]:
        """All of it before the first reply; after that, what stands between two of them."""
        from ludus.policy.chat import incremental_prompt

        if self._turn == 0:
            return self._loaded.initial_prompt_ids(since, self._tools)
        policy = self._loaded.policy
        speech = policy.tokenizer, policy.chat_format
        reply = since[0] if since and since[0].role == "assistant" else None
        heard = since[0 if reply is None else 1 :]
        return incremental_prompt.continuation_ids(
            *speech, heard, self._tools, turn_ended=self._reply_stopped, reply=reply
        )

    async def _sample(self, prompt: tuple[int, ...], max_tokens: int) -> Completion:
        self._turn += 1
        try:
            return await self._loaded.batcher.sample(
                prompt,
                max_tokens=max_tokens,
                stop_token_ids=self._loaded.policy.chat_format.stop_token_ids,
                sampling=self._loaded.sampling,
                seed=digest_64(f"{self._seed}/{self._turn}"),
                images=self._images,
            )
        except LudusError:
            raise
        except Exception as error:
            words = " ".join(str(error).split())[:300]
            raise AgentError(f"The model failed: {type(error).__name__}: {words}") from error

    def _append_reply(self, sampled: Completion) -> None:
        self._reply_stopped = sampled.stopped
        self._append_tokens(sampled.ids, sampled.logprobs, 1)

    def _append_tokens(
        self, ids: Sequence[int], logprobs: Sequence[float | None], sampled: Literal[0, 1]
    ) -> None:
        self._ids += ids
        self._logprobs += logprobs
        self._mask += [sampled] * len(ids)
