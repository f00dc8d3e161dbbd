"""The fast engine against transformers: the same replies, the same log-probabilities."""

from __future__ import annotations

import pytest
import torch

from ludus.policy.engine.engine_api import Completion
from ludus.policy.engine.sampling import SamplingParams
from policy.forwards import GREEDY, fresh_logprobs, prompt, request
from policy.triton_engine.families import (
    CONTEXT,
    FAMILIES,
    engine_of,
    fresh,
    generated,
    model_of,
    said,
)

LENGTHS = (3, 9, 1, 17, 9)


@pytest.mark.parametrize("kind", FAMILIES)
def test_greedy_replies_are_those_of_transformers(kind: str) -> None:
    model = model_of(kind)
    prompts = [prompt(length, seed=at) for at, length in enumerate(LENGTHS)]
    replies = said(engine_of(model), [request(ids, sampling=GREEDY) for ids in prompts])
    assert [reply.ids for reply in replies] == [generated(model, ids) for ids in prompts]
    assert len({reply.ids for reply in replies}) > 2, "the replies can be told apart"


@pytest.mark.parametrize("kind", FAMILIES)
def test_logprobs_are_those_of_a_fresh_forward_pass(kind: str) -> None:
    model = model_of(kind)
    heats = (1.0, 0.5, 1.7, 0.9, 0.0)
    requests = [
        request(
            prompt(length, seed=at), seed=at, sampling=SamplingParams(heat), max_tokens=2 + 3 * at
        )
        for at, (length, heat) in enumerate(zip(LENGTHS, heats, strict=True))
    ]
    for asked, reply in zip(requests, said(engine_of(model), requests), strict=True):
        heat = asked.sampling.temperature or 1.0
        expected = fresh_logprobs(model, asked.ids, reply.ids, temperature=heat)
        assert reply.ids and reply.logprobs == pytest.approx(expected, abs=1e-4)


def test_a_reply_does_not_depend_on_who_else_is_in_the_batch() -> None:
    model = model_of()
    requests = [request(prompt(n, seed=n), seed=n) for n in LENGTHS]
    together = [reply.ids for reply in said(engine_of(model), requests)]
    assert together == [said(engine_of(model), [each])[0].ids for each in requests]


def test_the_seed_decides_the_reply() -> None:
    ids, seeds = prompt(6), (7, 7, 8, 2**63 + 7)
    one, same, other, far = said(engine_of(model_of()), [request(ids, seed=seed) for seed in seeds])
    assert one.ids == same.ids and len({one.ids, other.ids, far.ids}) == 3


def test_a_reply_ends_with_its_own_stop_or_its_own_budget() -> None:
    engine, ids = engine_of(model_of()), prompt(5)
    (whole,) = said(engine, [request(ids, sampling=GREEDY, stop_token_ids=())])
    stop = next(token for token in whole.ids if token != whole.ids[0])
    until = whole.ids[: whole.ids.index(stop) + 1]
    many = (*range(-20, 0), stop)
    short, cut, none = said(
        engine,
        [
            request(ids, sampling=GREEDY, stop_token_ids=many),
            request(ids, sampling=GREEDY, stop_token_ids=(), max_tokens=5),
            request((), sampling=GREEDY),
        ],
    )
    assert (short.ids, short.stopped) == (until, True)
    assert (cut.ids, cut.stopped) == (whole.ids[:5], False)
    assert (none.ids, none.stopped) == ((), False)


def test_the_context_is_the_most_that_a_reply_can_fill() -> None:
    lengths = (CONTEXT + 3, CONTEXT, CONTEXT - 1, CONTEXT - 4, 2)
    replies = said(
        engine_of(model_of()),
        [request(prompt(length), stop_token_ids=(), max_tokens=1000) for length in lengths],
    )
    assert [len(reply.ids) for reply in replies] == [0, 0, 1, 4, CONTEXT - 2]
    assert not any(reply.stopped for reply in replies)


def test_who_finds_no_slot_waits_for_one() -> None:
    model = model_of()
    requests = [
        request(prompt(3 + n, seed=n), seed=n, stop_token_ids=(), max_tokens=4) for n in range(9)
    ]
    replies = said(engine_of(model, max_batch=2), requests)
    assert [reply.ids for reply in replies] == [
        reply.ids for reply in said(engine_of(model), requests)
    ]


def test_what_is_not_wanted_any_more_is_dropped() -> None:
    handed: dict[int, Completion] = {}
    requests = [request(prompt(4), stop_token_ids=(), max_tokens=30, seed=n) for n in range(3)]
    engine = engine_of(model_of())
    engine.run(requests, handed.__setitem__, lambda at: at == 1)
    assert list(handed) == [1] and len(handed[1].ids) == 30
    assert said(engine, requests)[1].ids == handed[1].ids, "and its slots are free again"


def test_logits_that_are_no_numbers_are_an_error_and_the_engine_lives_on() -> None:
    model = fresh()
    engine, asked = engine_of(model), [request(prompt(6))]
    before = said(engine, asked)
    kept = model.lm_head.weight.detach().clone()
    with torch.no_grad():
        model.lm_head.weight.fill_(torch.nan)
    engine.refresh()
    with pytest.raises(ValueError, match="no numbers"):
        said(engine, asked)
    with torch.no_grad():
        model.lm_head.weight.copy_(kept)
    engine.refresh()
    assert said(engine, asked) == before


def test_a_longer_prompt_makes_the_cache_grow_and_costs_nobody_a_word() -> None:
    model = fresh(max_position_embeddings=2048)
    engine = engine_of(model)
    late = [request(prompt(600, seed=2), sampling=GREEDY, max_tokens=5)]
    told: dict[int, Completion] = {}
    first = request(prompt(5), sampling=GREEDY, max_tokens=40, stop_token_ids=())
    engine.run([first], told.__setitem__, poll_requests=lambda room: [late.pop()] if late else [])
    assert told[0].ids == generated(model, first.ids, 40)
    assert told[1].ids == generated(model, prompt(600, seed=2), 5)
