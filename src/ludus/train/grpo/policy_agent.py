"""The model under training as an agent: it plays while it changes.

How it decodes is `ludus.policy`'s business; what its episodes teach it, the trainer's.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

from ludus.data.tool_schema import JsonObject
from ludus.policy.agent import LoadedPolicy, PolicyAgent
from ludus.policy.engine.batcher import Engine, RequestBatcher
from ludus.policy.engine.decode_stats import DecodeStats
from ludus.policy.load import Policy
from ludus.policy.sampling_config import resolve_sampling
from ludus.train.grpo.grpo_config import GRPOConfig


class TrainingPolicyAgent(PolicyAgent):
    """Says in each episode at which step it was."""

    step = 0
    """The step that the next episodes are played for, from 1."""

    def __init__(
        self, policy: Policy, config: GRPOConfig, *, engine: Engine | None = None, **more: Any
    ) -> None:
        self._engine_override = engine
        extra: JsonObject = {"seed": config.seed, "top_p": config.top_p}
        if config.top_k is not None:
            extra["top_k"] = config.top_k
        super().__init__(policy, temperature=config.temperature, extra=extra, **more)

    def describe(self) -> JsonObject:
        return {**super().describe(), "step": self.step}

    def _start_engine(self, policy: Policy) -> LoadedPolicy:
        if self._engine_override is None:
            return super()._start_engine(policy)
        self.engine = str(self._engine_override)
        generator = RequestBatcher(
            policy.model, max_batch=self.max_batch, engine=self._engine_override
        )
        return LoadedPolicy(
            policy, generator, resolve_sampling(self._sampling_options, policy.model)
        )

    @property
    def decode_stats(self) -> DecodeStats:
        """What it has decoded so far."""
        return (
            replace(self._loaded_policy.batcher.stats)
            if self._loaded_policy is not None
            else DecodeStats()
        )

    async def renewed(self) -> None:
        """Its weights have changed: what was made of the old ones is forgotten."""
        generator = (await self.ensure_loaded()).batcher
        # All weights are copied, and the loop has sessions to keep.
        await asyncio.to_thread(generator.refresh)
