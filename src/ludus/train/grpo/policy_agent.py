"""The model under training as an agent."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

from ludus.data.tool_schema import JsonObject
from ludus.policy.agent import PolicyAgent
from ludus.policy.engine.batcher import Engine, RequestBatcher
from ludus.policy.engine.engine_api import DecodeStats
from ludus.policy.load import Policy
from ludus.policy.sampling_config import eos_token_ids
from ludus.train.grpo.grpo_config import GRPOConfig
from ludus.train.grpo.grpo_context import GRPOContext
from ludus.train.grpo.vllm_engine import VllmEngine


class TrainingPolicyAgent(PolicyAgent):
    """A policy agent whose weights change; its episodes record the step they were played for."""

    step = 0
    """Training step of the next episodes, from 1."""

    def __init__(
        self, policy: Policy, config: GRPOConfig, *, engine: Engine | None = None, **kwargs: Any
    ) -> None:
        self._engine_override = engine
        extra: JsonObject = {"seed": config.seed, "top_p": config.top_p}
        if config.top_k is not None:
            extra["top_k"] = config.top_k
        super().__init__(policy, temperature=config.temperature, extra=extra, **kwargs)

    def describe(self) -> JsonObject:
        return {**super().describe(), "step": self.step}

    def _start_engine(self, policy: Policy) -> RequestBatcher:
        engine = self._engine_override
        if engine is None:
            return super()._start_engine(policy)
        self.engine_description = str(engine)
        return RequestBatcher(policy.model, max_batch=self.max_batch, engine=engine)

    @property
    def decode_stats(self) -> DecodeStats:
        """A copy of the decoding counters."""
        runtime = self._runtime
        return DecodeStats() if runtime is None else replace(runtime.batcher.stats)

    async def refresh_weights(self) -> None:
        """Drop everything that the engine derived from the old weights."""
        batcher = (await self.ensure_loaded()).batcher
        # In a thread: all weights are copied, and the event loop has open sessions to serve.
        await asyncio.to_thread(batcher.refresh)

    def free_cache(self, *, larger_than: int = 0) -> None:
        """Give back the memory of the engine's cache, if it takes more bytes than that."""
        if self._runtime is not None:
            self._runtime.batcher.free_cache(larger_than=larger_than)


def build_policy_agent(context: GRPOContext, trainer: Any) -> TrainingPolicyAgent:
    """The model of a GRPO run's trainer as a policy agent."""
    config, chat_format = context.config, context.chat_format
    stop_token_ids = chat_format.stop_token_ids | eos_token_ids(trainer.model)
    policy = Policy(
        context.model_ref.name, trainer.model, context.tokenizer,
        replace(chat_format, stop_token_ids=stop_token_ids), vision=context.vision,
    )  # fmt: skip
    engine = VllmEngine(trainer) if config.vllm_mode else None
    max_batch = config.episodes // context.distributed.world_size
    return TrainingPolicyAgent(policy, config, engine=engine, max_batch=max_batch)
