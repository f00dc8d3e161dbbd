"""The model under training as an agent."""

from __future__ import annotations

import asyncio
import threading

from policy.models import tiny
from tiny_tokenizers import of_family

from ludus.policy.chat.chat_format import find_chat_format
from ludus.policy.engine.hf_decoder import HFDecoder
from ludus.policy.load import Policy
from ludus.train import GRPOConfig
from ludus.train.grpo.policy_agent import TrainingPolicyAgent


class SlowDecoder(HFDecoder):
    """Its refresh returns when it is allowed to."""

    started = threading.Event()
    allowed = threading.Event()
    refreshed = False

    def refresh(self) -> None:
        self.started.set()
        self.refreshed = self.allowed.wait(30)


async def test_refreshing_weights_does_not_block_the_event_loop() -> None:
    tokenizer = of_family("qwen3")
    policy = Policy("talker", tiny(tokenizer), tokenizer, find_chat_format(tokenizer))
    engine = SlowDecoder(policy.model, pad_id=0)
    async with TrainingPolicyAgent(policy, GRPOConfig(), engine=engine) as agent:
        refreshing = asyncio.ensure_future(agent.refresh_weights())
        await asyncio.to_thread(engine.started.wait, 30)
        assert not refreshing.done()
        engine.allowed.set()
        await refreshing
    assert engine.refreshed, "the loop was free to allow it"
