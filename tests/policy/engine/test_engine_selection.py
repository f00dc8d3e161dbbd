"""The choice of an engine, and a batcher with a continuously batching engine."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest
import torch
from tiny_tokenizers import of_family
from world import until

from ludus.errors import ConfigError
from ludus.policy.agent import PolicyAgent
from ludus.policy.chat.chat_format import find_chat_format
from ludus.policy.engine.batcher import Completion, RequestBatcher, SamplingParams
from ludus.policy.engine.hf_decoder import HFDecoder
from ludus.policy.load import Policy
from ludus.policy.runtime import start_engine
from ludus.policy.triton_engine.triton_engine import TritonEngine
from policy.forwards import model_of, prompt
from policy.models import tiny
from policy.triton_engine.tiny_models import build_engine, build_model, shared_model


@pytest.fixture(scope="module")
def policy() -> Policy:
    tokenizer = of_family("qwen3")
    return Policy("llama", tiny(tokenizer), tokenizer, find_chat_format(tokenizer))


async def sample(model: RequestBatcher, seed: int, **kwargs: Any) -> Completion:
    defaults: dict[str, Any] = {"max_tokens": 6, "stop_token_ids": (), "sampling": SamplingParams()}
    return await model.sample(prompt(9), seed=seed, **(defaults | kwargs))


@pytest.mark.parametrize(("fast", "reason"), [(None, "no GPU"), (False, "switched off")])
async def test_an_agent_describes_its_engine(
    policy: Policy, fast: bool | None, reason: str
) -> None:
    async with PolicyAgent(policy, fast=fast) as agent:
        assert agent.engine_description == "not loaded yet"
        await agent.ensure_loaded()
        assert agent.engine_description.startswith("HF decoder: ")
        assert reason in agent.engine_description
        assert agent.concurrency_limit == 64


async def test_an_unsupported_model_is_rejected_if_fast_is_required(policy: Policy) -> None:
    async with PolicyAgent(policy, fast=True) as agent:
        with pytest.raises(ConfigError, match=r"`fast`.*LlamaForCausalLM"):
            await agent.ensure_loaded()


async def test_a_supported_model_gets_the_triton_engine_if_fast_is_required(policy: Policy) -> None:
    policy = replace(policy, model=build_model(vocab_size=len(policy.tokenizer)))
    async with PolicyAgent(policy, fast=True) as agent:
        loaded = await agent.ensure_loaded()
        assert agent.engine_description.startswith("Triton engine")
        assert agent.concurrency_limit == 256
        reply = await sample(loaded.batcher, 3)
    async with PolicyAgent(policy, fast=True, max_batch=4) as agent:
        again = await sample((await agent.ensure_loaded()).batcher, 3)
        assert agent.concurrency_limit == 4 and again == reply


@pytest.mark.parametrize(("max_batch", "slots"), [(4, 4), (100, 100), (None, 256)])
async def test_the_kv_cache_has_as_many_slots_as_the_batch(
    policy: Policy, max_batch: int | None, slots: int
) -> None:
    policy = replace(policy, model=build_model(vocab_size=len(policy.tokenizer)))
    batcher, _ = start_engine(policy, fast=True, max_batch=max_batch)
    async with batcher:
        await sample(batcher, 0)
    engine = batcher.engine
    assert isinstance(engine, TritonEngine) and engine._runner.cache.num_slots == slots


async def test_late_requests_join_a_running_batch() -> None:
    engine = build_engine(shared_model())
    async with RequestBatcher(engine, batch_wait_s=0.0) as model:
        long = asyncio.ensure_future(sample(model, 0, max_tokens=50))
        await until(lambda: engine.stats.sampled_tokens)
        late = await asyncio.gather(*(sample(model, seed) for seed in range(1, 5)))
        whole = await long
    assert len(whole.ids) == 50 and all(len(reply.ids) == 6 for reply in late)
    assert model.stats.sampled_tokens == 50 + 4 * 6
    assert (model.stats.prefilled_tokens, model.stats.reused_tokens) == (9 + 4, 4 * 8)
    assert model.stats.busy_s > 0


async def test_joined_requests_are_retried_after_out_of_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine, broken = build_engine(shared_model()), torch.OutOfMemoryError("too much")
    launch_steps, num_launches = engine._runner.launch_steps, 0

    def fail_once(*args: Any, **kwargs: Any) -> None:
        nonlocal num_launches
        num_launches += 1
        if num_launches == 6:
            raise broken
        launch_steps(*args, **kwargs)

    monkeypatch.setattr(engine._runner, "launch_steps", fail_once)
    async with RequestBatcher(engine, batch_wait_s=0.0, max_batch=8) as model:
        first = asyncio.ensure_future(sample(model, 0, max_tokens=50))
        await until(lambda: engine.stats.sampled_tokens)
        late = await asyncio.gather(*(sample(model, seed, max_tokens=50) for seed in range(1, 4)))
        assert len((await first).ids) == 50 and all(len(reply.ids) == 50 for reply in late)
        assert num_launches > 6 and model.max_batch < 8


async def test_refresh_takes_over_changed_weights() -> None:
    weights = build_model()
    async with RequestBatcher(build_engine(weights)) as model:
        before = await sample(model, 1)
        with torch.no_grad():
            weights.lm_head.weight.mul_(-1)
        model.refresh()
        assert (await sample(model, 1)).ids != before.ids


async def test_the_hf_decoder_counts_tokens() -> None:
    decoder = HFDecoder(model_of("llama"), pad_id=0)
    async with RequestBatcher(decoder) as model:
        await asyncio.gather(*(sample(model, seed) for seed in range(3)))
        model.refresh()
    stats = model.stats
    assert (stats.sampled_tokens, stats.prefilled_tokens, stats.reused_tokens) == (18, 8 + 3, 16)
    assert stats.busy_s > 0
