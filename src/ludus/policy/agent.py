"""A local model as an agent: it plays many episodes at once, and keeps every token that it sampled.

Within an episode ids are only ever added: what the model sampled stays as it was sampled, and what
it is shown is tokenized once. How a conversation is written in ids is `ludus.policy.turns`'
business, how ids are sampled `ludus.policy.generate`'s.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

from ludus.agents.agent import Agent, FinishReason, Player, Reply, EpisodeContext
from ludus.data.episode import Tokens, Usage, digest_64
from ludus.data.messages import Message
from ludus.data.tools import JsonObject
from ludus.environment.threads import WorkerThread
from ludus.errors import AgentError, ConfigError, LudusError
from ludus.policy.engines import PLAIN_BATCH, choose_engine
from ludus.policy.fingerprint import fingerprint
from ludus.policy.generate import Generator, Sampled, Sampling
from ludus.policy.preflight import check_model
from ludus.policy.reading import Reader
from ludus.policy.requests import context_of, refuse_unreadable
from ludus.policy.settings import checked, recommended, recommended_for, sampling_of, told
from ludus.policy.template_defaults import check_values, saved_kwargs

if TYPE_CHECKING:
    from ludus.policy.eyes.pictures import Picture
    from ludus.policy.load import Policy

MAX_TOKENS = 2048
"""Of a reply for which nobody has set a limit."""
REMEMBERED = 256
"""Openings, after which all are forgotten: attempts at a task come together."""


@dataclass(frozen=True)
class Ready:
    """A model that can be asked."""

    policy: Policy
    generator: Generator
    sampling: Sampling
    _openings: dict[str, tuple[int, ...]] = field(default_factory=dict)

    @cached_property
    def reader(self) -> Reader:
        policy = self.policy
        return Reader(policy.tokenizer, policy.dialect.response, policy.dialect.stops)

    def opening(self, shown: Sequence[Message], tools: Sequence[JsonObject]) -> tuple[int, ...]:
        """The ids of how an episode begins, which is the same for all attempts at a task."""
        from ludus.policy import turns

        key = "\n".join([*(each.model_dump_json() for each in shown), json.dumps(tools)])
        known = self._openings
        if key not in known:
            if len(known) >= REMEMBERED:
                known.clear()
            policy = self.policy
            known[key] = tuple(turns.opening(policy.tokenizer, policy.dialect, shown, tools))
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
        fast: whether own kernels decode (see `ludus.policy.fast`); if not given, where they can.
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
        self.max_batch = max_batch or PLAIN_BATCH
        self.engine = "not loaded yet"
        """One line of how it decodes, and if plainly, why."""
        self._max_batch, self._fast = max_batch, fast
        self._loaded = None if isinstance(model, str) else model
        self._device, self._dtype = device, dtype
        self._given = checked(temperature, extra or {})
        self._template_kwargs = dict(chat_template_kwargs or {})
        check_values(self._template_kwargs)
        if self._loaded is not None and self._template_kwargs:
            raise ConfigError("chat_template_kwargs are given to `load` where a policy is loaded.")
        self._ready: Ready | None = None
        self._sampled_before = 0
        """Tokens of generators that are closed."""
        self._opening = asyncio.Lock()

    def describe(self) -> JsonObject:
        """Who plays, and how its tokens are chosen. It is asked before the model is loaded."""
        who: JsonObject = {"provider": self.provider, "model": self.model}
        more = {
            "weights": self._weights,
            "dtype": self._dtype,
            "chat_template_kwargs": self._rendered_with,
        }
        how = told(self._given, self._advised)
        return who | how | {name: value for name, value in more.items() if value}

    @cached_property
    def _advised(self) -> Sampling | None:
        loaded = self._loaded
        return recommended_for(self.model) if loaded is None else recommended(loaded.model)

    @cached_property
    def _weights(self) -> str | None:
        """Their fingerprint: under the same name there may be other ones tomorrow."""
        return fingerprint(self.model) if self._loaded is None else self._loaded.weights

    @cached_property
    def _rendered_with(self) -> JsonObject:
        """The arguments of the chat template: those given, over those saved with the model."""
        if self._loaded is not None:
            return dict(self._loaded.dialect.chat_template_kwargs)
        return {**saved_kwargs(self.model), **self._template_kwargs}

    @property
    def concurrency_limit(self) -> int:
        return self.max_batch

    @property
    def local_model(self) -> str:
        return self.model

    @property
    def sampled_tokens(self) -> int:
        ready = self._ready
        return self._sampled_before + (0 if ready is None else ready.generator.stats.sampled)

    @property
    def stall_expected(self) -> bool:
        """While it decodes: on a CPU a reply of many at once takes minutes."""
        return self._ready is not None and self._ready.generator.at_work

    @property
    def has_price(self) -> bool:
        return False

    def check(self) -> None:
        if self._loaded is None:
            check_model(self.model, device=self._device, dtype=self._dtype)

    async def prepare(self, environments: Sequence[str] = ()) -> None:
        await self.ready()

    async def ready(self) -> Ready:
        """The model, loaded once, however many episodes begin with it."""
        async with self._opening:
            if self._ready is None:
                self._ready = await self._open()
            return self._ready

    async def _open(self) -> Ready:
        # In a thread that nothing waits for: a load that takes minutes can be interrupted.
        worker = WorkerThread()
        try:
            ready: Ready = await worker.submit(lambda: self._opened(self._loaded or self._load()))
            return ready
        finally:
            worker.stop()

    def _load(self) -> Policy:
        from ludus.policy.load import load

        return load(
            self.model,
            device=self._device,
            dtype=self._dtype,
            chat_template_kwargs=self._template_kwargs,
        )

    def _opened(self, policy: Policy) -> Ready:
        chosen = choose_engine(
            policy, fast=self._fast, dtype=self._dtype, max_batch=self._max_batch
        )
        self.engine, self.max_batch = chosen.words, chosen.max_batch
        generator = Generator(
            policy.model, max_batch=chosen.max_batch, engine=chosen.engine, lull=chosen.lull
        )
        return Ready(policy, generator, sampling_of(self._given, policy.model))

    async def begin(self, context: EpisodeContext) -> Player:
        return _PolicyPlayer(await self.ready(), context, self._given.get("seed", 0))

    async def close(self) -> None:
        if self._ready is not None:
            self._sampled_before = self.sampled_tokens
            generator, self._ready = self._ready.generator, None
            await generator.close()


class _PolicyPlayer(Player):
    """One episode: all of its ids so far, and which of them the model sampled."""

    def __init__(self, ready: Ready, situation: EpisodeContext, seed: int) -> None:
        self._model = ready
        self._environment = situation.environment
        self._tools = [tool.to_openai() for tool in situation.tools]
        self._seed = f"{seed}/{situation.seed}/{situation.member}"
        self._ids: list[int] = []
        self._logprobs: list[float | None] = []
        self._mask: list[Literal[0, 1]] = []
        self._pictures: list[Picture] = []
        """What it has been shown, in the order of their places among the ids."""
        self._heard = 0
        """Messages that are in the ids already."""
        self._since: Sequence[int] = ()
        """What was written since the model last spoke, up to where its reply begins."""
        self._stopped = True
        self._turn = 0

    async def act(self, messages: Sequence[Message], *, max_tokens: int | None = None) -> Reply:
        await self._hear(messages)
        prompt = tuple(self._ids)
        if self._turn == 0:
            # Later it is the episode that has filled the context, and that is how it ends.
            refuse_unreadable(prompt, context_of(self._model.policy.model))
        sampled = await self._sample(prompt, MAX_TOKENS if max_tokens is None else max_tokens)
        self._say(sampled)
        return Reply(
            self._model.reader(self._since, sampled.ids, self._tools, named=f"call_{len(prompt)}"),
            finish_reason=FinishReason.STOP if sampled.stopped else FinishReason.LENGTH,
            usage=Usage(prompt_tokens=len(prompt), completion_tokens=len(sampled.ids)),
            tokens=Tokens(
                ids=tuple(self._ids), logprobs=tuple(self._logprobs), mask=tuple(self._mask)
            ),
        )

    async def _hear(self, messages: Sequence[Message]) -> None:
        """Add what has been said since this model's last words."""
        from ludus.policy.eyes.showing import looked

        policy = self._model.policy
        since = messages[self._heard :]
        pictures = await looked(policy, self._environment, since)
        if policy.eyes is None:
            ids = self._written(since)
        else:
            said = self._written([policy.eyes.words(each) for each in since])
            ids = policy.eyes.expanded(said, pictures)
        self._pictures += pictures
        self._heard, self._since = len(messages), ids
        self._add(ids, [None] * len(ids), 0)

    def _written(self, since: Sequence[Message]) -> Sequence[int]:
        """All of it before the first reply; after that, what stands between two of them."""
        from ludus.policy import turns

        if self._turn == 0:
            return self._model.opening(since, self._tools)
        policy = self._model.policy
        speech = policy.tokenizer, policy.dialect
        reply = since[0] if since and since[0].role == "assistant" else None
        heard = since[0 if reply is None else 1 :]
        return turns.answers(*speech, heard, self._tools, ended=self._stopped, reply=reply)

    async def _sample(self, prompt: tuple[int, ...], max_tokens: int) -> Sampled:
        self._turn += 1
        try:
            return await self._model.generator.sample(
                prompt,
                max_tokens=max_tokens,
                stops=self._model.policy.dialect.stops,
                sampling=self._model.sampling,
                seed=digest_64(f"{self._seed}/{self._turn}"),
                pictures=self._pictures,
            )
        except LudusError:
            raise
        except Exception as error:
            words = " ".join(str(error).split())[:300]
            raise AgentError(f"The model failed: {type(error).__name__}: {words}") from error

    def _say(self, sampled: Sampled) -> None:
        self._stopped = sampled.stopped
        self._add(sampled.ids, sampled.logprobs, 1)

    def _add(
        self, ids: Sequence[int], logprobs: Sequence[float | None], sampled: Literal[0, 1]
    ) -> None:
        self._ids += ids
        self._logprobs += logprobs
        self._mask += [sampled] * len(ids)
