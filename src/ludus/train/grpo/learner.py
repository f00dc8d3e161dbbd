"""The model under training as an agent: it plays while it changes.

How it decodes is `ludus.policy`'s business; what its episodes teach it, the trainer's.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

from ludus.data.tools import JsonObject
from ludus.policy.agent import PolicyAgent, Ready
from ludus.policy.generate import Engine, Generator
from ludus.policy.load import Policy
from ludus.policy.settings import sampling_of
from ludus.policy.tally import Tally
from ludus.train.grpo.settings import GrpoSettings


class Learner(PolicyAgent):
    """Says in each episode at which step it was."""

    step = 0
    """The step that the next episodes are played for, from 1."""

    def __init__(
        self, policy: Policy, config: GrpoSettings, *, engine: Engine | None = None, **more: Any
    ) -> None:
        self._own = engine
        extra: JsonObject = {"seed": config.seed, "top_p": config.top_p}
        if config.top_k is not None:
            extra["top_k"] = config.top_k
        super().__init__(policy, temperature=config.temperature, extra=extra, **more)

    def describe(self) -> JsonObject:
        return {**super().describe(), "step": self.step}

    def _opened(self, policy: Policy) -> Ready:
        if self._own is None:
            return super()._opened(policy)
        self.engine = str(self._own)
        generator = Generator(policy.model, max_batch=self.max_batch, engine=self._own)
        return Ready(policy, generator, sampling_of(self._given, policy.model))

    @property
    def tally(self) -> Tally:
        """What it has decoded so far."""
        return replace(self._ready.generator.stats) if self._ready is not None else Tally()

    async def renewed(self) -> None:
        """Its weights have changed: what was made of the old ones is forgotten."""
        generator = (await self.ready()).generator
        # All weights are copied, and the loop has sessions to keep.
        await asyncio.to_thread(generator.refresh)
