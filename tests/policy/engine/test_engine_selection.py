"""Which engine a policy gets, and a generator whose engine others can join."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest
import torch
from students import of_family
from world import until

from ludus.errors import ConfigError
from ludus.policy.agent import PolicyAgent
from ludus.policy.chat.chat_format import find_chat_format
from ludus.policy.engine.batcher import Completion, RequestBatcher, SamplingParams
from ludus.policy.engine.engine_selection import choose_engine
from ludus.policy.engine.hf_decoder import HFDecoder
from ludus.policy.load import Policy
from ludus.policy.triton_engine.triton_engine import TritonEngine
from policy.forwards import model_of as other_model_of
from policy.forwards import prompt
from policy.models import tiny
from policy.triton_engine.tiny_models import build_engine as engine_of
from policy.triton_engine.tiny_models import build_model as fresh
from policy.triton_engine.tiny_models import shared_model as model_of


@pytest.fixture(scope="module")
def talker() -> Policy:
    tokenizer = of_family("qwen3")
    return Policy("talker", tiny(tokenizer), tokenizer, find_chat_format(tokenizer))


async def ask(model: RequestBatcher, seed: int, **more: Any) -> Completion:
    given: dict[str, Any] = {"max_tokens": 6, "stop_token_ids": (), "sampling": SamplingParams()}
    return await model.sample(prompt(9), seed=seed, **(given | more))


@pytest.mark.parametrize(
    ("fast", "words"),
    [(None, "plain generate: no GPU"), (False, "plain generate: fast decoding is switched off")],
)
async def test_an_agent_says_how_it_decodes_and_why(
    talker: Policy, fast: bool | None, words: str
) -> None:
    async with PolicyAgent(talker, fast=fast) as agent:
        assert agent.engine_description == "not loaded yet"
        await agent.ensure_loaded()
        assert (agent.engine_description, agent.concurrency_limit) == (words, 64)


async def test_what_was_asked_for_and_cannot_be_is_refused(talker: Policy) -> None:
    async with PolicyAgent(talker, fast=True) as agent:
        with pytest.raises(ConfigError) as refused:
            await agent.ensure_loaded()
    assert str(refused.value) == (
        "Fast decoding was asked for, and cannot be: this LlamaForCausalLM has heads of 8 numbers. "
        "Leave it off."
    )


async def test_a_model_that_can_be_decoded_fast_is_where_it_is_asked_for(talker: Policy) -> None:
    policy = replace(talker, model=fresh(vocab_size=len(talker.tokenizer)))
    async with PolicyAgent(policy, fast=True) as agent:
        ready = await agent.ensure_loaded()
        assert (agent.engine_description, agent.concurrency_limit) == (
            "fast decoding, in plain torch on the CPU",
            256,
        )
        said = await ask(ready.batcher, 3)
    async with PolicyAgent(policy, fast=True, max_batch=4) as agent:
        again = await ask((await agent.ensure_loaded()).batcher, 3)
        assert agent.concurrency_limit == 4 and again == said


@pytest.mark.parametrize(("max_batch", "slots"), [(4, 4), (100, 100), (None, 64)])
async def test_room_is_made_for_as_many_as_are_asked_for(
    talker: Policy, max_batch: int | None, slots: int
) -> None:
    policy = replace(talker, model=fresh(vocab_size=len(talker.tokenizer)))
    chosen = choose_engine(policy, fast=True, dtype=None, max_batch=max_batch)
    async with RequestBatcher(None, engine=chosen.engine) as model:
        await ask(model, 0)
    assert isinstance(chosen.engine, TritonEngine)
    assert chosen.engine._runner.cache.num_slots == slots


async def test_who_comes_late_joins_those_under_way() -> None:
    engine = engine_of(model_of())
    async with RequestBatcher(None, engine=engine, batch_wait_s=0.0) as model:
        long = asyncio.ensure_future(ask(model, 0, max_tokens=50))
        await until(lambda: engine.stats.sampled_tokens)
        late = await asyncio.gather(*(ask(model, seed) for seed in range(1, 5)))
        assert not long.done(), "they were answered before the one that came first"
        whole = await long
    assert len(whole.ids) == 50 and all(len(reply.ids) == 6 for reply in late)
    assert model.stats.sampled_tokens == 50 + 4 * 6
    assert (model.stats.prefilled_tokens, model.stats.reused_tokens) == (
        9 + 4,
        4 * 8,
    ) and model.stats.busy_s > 0


async def test_what_joins_a_batch_that_fails_is_tried_again_with_the_rest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine, broken = engine_of(model_of()), torch.OutOfMemoryError("too much")
    advance, steps = engine._runner.launch_steps, 0

    def fail_once(*given: Any, **more: Any) -> None:
        nonlocal steps
        steps += 1
        if steps == 6:
            raise broken
        advance(*given, **more)

    monkeypatch.setattr(engine._runner, "launch_steps", fail_once)
    async with RequestBatcher(None, engine=engine, batch_wait_s=0.0, max_batch=8) as model:
        first = asyncio.ensure_future(ask(model, 0, max_tokens=50))
        await until(lambda: engine.stats.sampled_tokens)
        late = await asyncio.gather(*(ask(model, seed, max_tokens=50) for seed in range(1, 4)))
        assert len((await first).ids) == 50 and all(len(each.ids) == 50 for each in late)
        assert steps > 6 and model.max_batch < 8


async def test_a_generator_passes_on_that_the_model_has_learned() -> None:
    weights = fresh()
    async with RequestBatcher(None, engine=engine_of(weights)) as model:
        before = await ask(model, 1)
        with torch.no_grad():
            weights.lm_head.weight.mul_(-1)
        model.refresh()
        assert (await ask(model, 1)).ids != before.ids


async def test_the_plain_way_counts_too() -> None:
    decoder = HFDecoder(other_model_of("llama"), pad_id=0)
    async with RequestBatcher(None, engine=decoder) as model:
        await asyncio.gather(*(ask(model, seed) for seed in range(3)))
        model.refresh()
    assert (
        model.stats.sampled_tokens,
        model.stats.prefilled_tokens,
        model.stats.reused_tokens,
    ) == (18, 8 + 3, 16)
    assert model.stats.busy_s > 0
