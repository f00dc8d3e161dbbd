"""Prefixes are computed once: within a group, and from turn to turn."""

from __future__ import annotations

import pytest
import torch

from ludus.policy.engine.engine_api import Completion, Request
from ludus.policy.triton_engine.triton_engine import TritonEngine
from policy.forwards import GREEDY, prompt, request
from policy.triton_engine.tiny_models import (
    build_engine,
    build_model,
    complete,
    hf_generate,
    shared_model,
)


def prefilled_and_reused(engine: TritonEngine) -> tuple[int, int]:
    return engine.stats.prefilled_tokens, engine.stats.reused_tokens


def test_the_prompt_of_a_group_is_prefilled_once() -> None:
    engine, ids = build_engine(shared_model()), prompt(20)
    complete(engine, [request(ids, seed=seed, max_tokens=4) for seed in range(8)])
    # Each computes the last token of its prompt, in its first decoding step.
    assert prefilled_and_reused(engine) == (19 + 8, 7 * 19)
    assert engine.stats.sampled_tokens > 8


def test_members_of_a_group_get_the_same_completion_as_alone() -> None:
    model, ids = shared_model(), prompt(20)
    requests = [request(ids, seed=seed) for seed in range(8)]
    together = [completion.ids for completion in complete(build_engine(model), requests)]
    alone = [complete(build_engine(model), [each])[0].ids for each in requests]
    assert together == alone and len({*alone}) > 4


def test_each_turn_of_an_episode_prefills_only_its_new_tokens() -> None:
    model = shared_model()
    engine, ids, turns = build_engine(model), prompt(10), 3
    for turn in range(turns):
        (completion,) = complete(engine, [request(ids, seed=turn, max_tokens=6, stop_token_ids=())])
        (fresh,) = complete(
            build_engine(model), [request(ids, seed=turn, max_tokens=6, stop_token_ids=())]
        )
        assert completion.ids == fresh.ids
        assert completion.logprobs == pytest.approx(fresh.logprobs, abs=1e-5)
        ids = (*ids, *completion.ids, *prompt(4, seed=turn))
    # Of every completion all but the last token is cached when the next turn comes.
    assert prefilled_and_reused(engine) == (10 + 2 * 5, 15 + 25)


def test_a_prompt_that_diverges_is_prefilled_from_there() -> None:
    model, base = shared_model(), prompt(20)
    other = (*base[:12], *prompt(5, seed=3))
    engine = build_engine(model)
    for ids in (base, other, base):
        (completion,) = complete(engine, [request(ids, sampling=GREEDY)])
        assert completion.ids == hf_generate(model, ids)
    assert prefilled_and_reused(engine) == (20 + 5 + 1, 12 + 19)


def test_a_prefix_is_copied_from_a_slot_in_use() -> None:
    model, ids = shared_model(), prompt(12)
    engine = build_engine(model)
    second = request(ids, sampling=GREEDY, stop_token_ids=(), max_tokens=9)
    late = [second]
    completions: dict[int, Completion] = {}

    def poll(capacity: int) -> list[Request]:
        return [late.pop()] if late and not completions else []

    first = request(ids, seed=1, stop_token_ids=(), max_tokens=30)
    engine.run([first], completions.__setitem__, poll_requests=poll)
    assert list(completions) == [1, 0], "the later one finishes first"
    assert completions[1].ids == complete(build_engine(model), [second])[0].ids
    assert completions[0].ids == complete(build_engine(model), [first])[0].ids
    assert prefilled_and_reused(engine) == (12 + 1, 11)


def test_refresh_drops_everything_that_old_weights_computed() -> None:
    model, ids = build_model(), prompt(20)
    engine, requests = build_engine(model), [request(ids, sampling=GREEDY)]
    before = complete(engine, requests)[0].ids
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(torch.linspace(0.3, 1.7, weight.shape[-1]))
    assert complete(engine, requests)[0].ids == before, "before the refresh"
    engine.refresh()
    assert complete(engine, requests)[0].ids == hf_generate(model, ids) != before
