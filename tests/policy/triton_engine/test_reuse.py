"""What has been read once is not read again: within a group, and from turn to turn."""

from __future__ import annotations

import pytest
import torch

from ludus.policy.engine.engine_api import Completion, Request
from ludus.policy.triton_engine.triton_engine import TritonEngine
from policy.forwards import GREEDY, prompt, request
from policy.triton_engine.families import engine_of, fresh, generated, model_of, said


def read_and_reused(engine: TritonEngine) -> tuple[int, int]:
    return engine.stats.prefilled_tokens, engine.stats.reused_tokens


def test_a_groups_prompt_is_read_once() -> None:
    engine, ids = engine_of(model_of()), prompt(20)
    said(engine, [request(ids, seed=seed, max_tokens=4) for seed in range(8)])
    # The last token of a prompt is read by each, as the first step of its reply.
    assert read_and_reused(engine) == (19 + 8, 7 * 19)
    assert engine.stats.sampled_tokens > 8


def test_members_of_a_group_get_what_they_would_get_alone() -> None:
    model, ids = model_of(), prompt(20)
    requests = [request(ids, seed=seed) for seed in range(8)]
    together = [reply.ids for reply in said(engine_of(model), requests)]
    alone = [said(engine_of(model), [each])[0].ids for each in requests]
    assert together == alone and len({*alone}) > 4


def test_the_turns_of_an_episode_are_read_as_they_come() -> None:
    model = model_of()
    engine, ids, turns = engine_of(model), prompt(10), 3
    for turn in range(turns):
        (reply,) = said(engine, [request(ids, seed=turn, max_tokens=6, stop_token_ids=())])
        (afresh,) = said(
            engine_of(model), [request(ids, seed=turn, max_tokens=6, stop_token_ids=())]
        )
        assert reply.ids == afresh.ids
        assert reply.logprobs == pytest.approx(afresh.logprobs, abs=1e-5)
        ids = (*ids, *reply.ids, *prompt(4, seed=turn))
    # Of every reply all but the last token is known when the next turn comes.
    assert read_and_reused(engine) == (10 + 2 * 5, 15 + 25)


def test_a_prompt_that_leaves_another_is_read_from_where_it_does() -> None:
    model, base = model_of(), prompt(20)
    other = (*base[:12], *prompt(5, seed=3))
    engine = engine_of(model)
    for ids in (base, other, base):
        (reply,) = said(engine, [request(ids, sampling=GREEDY)])
        assert reply.ids == generated(model, ids)
    assert read_and_reused(engine) == (20 + 5 + 1, 12 + 19)


def test_a_reply_may_begin_where_another_is_still_being_written() -> None:
    model, ids = model_of(), prompt(12)
    engine, late = (
        engine_of(model),
        [request(ids, sampling=GREEDY, stop_token_ids=(), max_tokens=9)],
    )
    told: dict[int, Completion] = {}

    def more(room: int) -> list[Request]:
        return [late.pop()] if late and not told else []

    first = request(ids, seed=1, stop_token_ids=(), max_tokens=30)
    engine.run([first], told.__setitem__, poll_requests=more)
    assert list(told) == [1, 0], "the one that came later was done sooner"
    assert told[1].ids == said(engine_of(model), [request(ids, sampling=GREEDY, stop_token_ids=(),
                                                          max_tokens=9)])[0].ids  # fmt: skip
    assert told[0].ids == said(engine_of(model), [first])[0].ids
    assert read_and_reused(engine) == (12 + 1, 11)


def test_after_the_model_has_learned_nothing_of_the_old_one_is_left() -> None:
    model, ids = fresh(), prompt(20)
    engine, asked = engine_of(model), [request(ids, sampling=GREEDY)]
    before = said(engine, asked)[0].ids
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(torch.linspace(0.3, 1.7, weight.shape[-1]))
    assert said(engine, asked)[0].ids == before, "it has not been told yet"
    engine.refresh()
    assert said(engine, asked)[0].ids == generated(model, ids) != before
