"""The model under training, as those see it who play beside it."""

from __future__ import annotations

import asyncio
import threading

from policy.models import tiny
from students import of_family

from ludus.policy.chat.chat_format import find_chat_format
from ludus.policy.engine.hf_decoder import HFDecoder
from ludus.policy.load import Policy
from ludus.train import GRPOConfig
from ludus.train.grpo.policy_agent import TrainingPolicyAgent


class Slow(HFDecoder):
    """Takes new weights over when it is let."""

    def refresh(self) -> None:
        self.renewed = self.let.wait(10)

    let = threading.Event()
    renewed = False


async def test_refreshing_weights_does_not_block_the_event_loop() -> None:
    tokenizer = of_family("qwen3")
    policy = Policy("talker", tiny(tokenizer), tokenizer, find_chat_format(tokenizer))
    engine = Slow(policy.model, pad_id=0)
    async with TrainingPolicyAgent(policy, GRPOConfig(), engine=engine) as learner:
        renewal = asyncio.ensure_future(learner.renewed())
        await asyncio.sleep(0.05)
        assert not renewal.done()
        engine.let.set()
        await renewal
    assert engine.renewed, "it was let by the loop, and did not wait in vain"
