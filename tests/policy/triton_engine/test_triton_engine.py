"""The Triton engine against transformers: same completions, same log-probabilities."""

from __future__ import annotations

import pytest
import torch

from ludus.policy.engine.engine_api import Completion
from ludus.policy.engine.sampling import SamplingParams
from policy.forwards import GREEDY, fresh_logprobs, prompt, request
from policy.triton_engine.tiny_models import (
    CONTEXT,
    MODEL_NAMES,
    build_engine,
    build_model,
    complete,
    hf_generate,
    shared_model,
)

LENGTHS = (3, 9, 1, 17, 9)


@pytest.mark.parametrize("name", MODEL_NAMES)
def test_greedy_completions_equal_those_of_transformers(name: str) -> None:
    model = shared_model(name)
    prompts = [prompt(length, seed=at) for at, length in enumerate(LENGTHS)]
    completions = complete(build_engine(model), [request(ids, sampling=GREEDY) for ids in prompts])
    assert [completion.ids for completion in completions] == [
        hf_generate(model, ids) for ids in prompts
    ]
    assert len({completion.ids for completion in completions}) > 2, "the completions differ"


@pytest.mark.parametrize("name", MODEL_NAMES)
def test_logprobs_equal_those_of_a_full_forward_pass(name: str) -> None:
    model = shared_model(name)
    temperatures = (1.0, 0.5, 1.7, 0.9, 0.0)
    requests = [
        request(
            prompt(length, seed=at),
            seed=at,
            sampling=SamplingParams(temperature),
            max_tokens=2 + 3 * at,
        )
        for at, (length, temperature) in enumerate(zip(LENGTHS, temperatures, strict=True))
    ]
    for each, completion in zip(requests, complete(build_engine(model), requests), strict=True):
        temperature = each.sampling.temperature or 1.0
        expected = fresh_logprobs(model, each.ids, completion.ids, temperature=temperature)
        assert completion.ids and completion.logprobs == pytest.approx(expected, abs=1e-4)


def test_a_completion_does_not_depend_on_its_batch() -> None:
    model = shared_model()
    requests = [request(prompt(n, seed=n), seed=n) for n in LENGTHS]
    together = [completion.ids for completion in complete(build_engine(model), requests)]
    assert together == [complete(build_engine(model), [each])[0].ids for each in requests]


def test_the_seed_determines_the_completion() -> None:
    ids, seeds = prompt(6), (7, 7, 8, 2**63 + 7)
    one, same, other, far = complete(
        build_engine(shared_model()), [request(ids, seed=seed) for seed in seeds]
    )
    assert one.ids == same.ids and len({one.ids, other.ids, far.ids}) == 3


def test_a_completion_ends_at_a_stop_token_or_at_max_tokens() -> None:
    engine, ids = build_engine(shared_model()), prompt(5)
    (whole,) = complete(engine, [request(ids, sampling=GREEDY, stop_token_ids=())])
    stop = next(token for token in whole.ids if token != whole.ids[0])
    until = whole.ids[: whole.ids.index(stop) + 1]
    many = (*range(-20, 0), stop)
    short, cut, none = complete(
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


def test_a_completion_never_exceeds_the_context() -> None:
    lengths = (CONTEXT + 3, CONTEXT, CONTEXT - 1, CONTEXT - 4, 2)
    completions = complete(
        build_engine(shared_model()),
        [request(prompt(length), stop_token_ids=(), max_tokens=1000) for length in lengths],
    )
    assert [len(completion.ids) for completion in completions] == [0, 0, 1, 4, CONTEXT - 2]
    assert not any(completion.stopped for completion in completions)


def test_requests_beyond_max_batch_wait_for_a_slot() -> None:
    model = shared_model()
    requests = [
        request(prompt(3 + n, seed=n), seed=n, stop_token_ids=(), max_tokens=4) for n in range(9)
    ]
    completions = complete(build_engine(model, max_batch=2), requests)
    assert [completion.ids for completion in completions] == [
        completion.ids for completion in complete(build_engine(model), requests)
    ]


def test_unwanted_requests_are_dropped() -> None:
    delivered: dict[int, Completion] = {}
    requests = [request(prompt(4), stop_token_ids=(), max_tokens=30, seed=n) for n in range(3)]
    engine = build_engine(shared_model())
    engine.run(requests, delivered.__setitem__, lambda index: index == 1)
    assert list(delivered) == [1] and len(delivered[1].ids) == 30
    assert complete(engine, requests)[1].ids == delivered[1].ids, "their slots are free again"


def test_nan_logits_are_an_error_that_the_engine_survives() -> None:
    model = build_model()
    engine, requests = build_engine(model), [request(prompt(6))]
    before = complete(engine, requests)
    saved = model.lm_head.weight.detach().clone()
    with torch.no_grad():
        model.lm_head.weight.fill_(torch.nan)
    engine.refresh()
    with pytest.raises(ValueError, match="not finite"):
        complete(engine, requests)
    with torch.no_grad():
        model.lm_head.weight.copy_(saved)
    engine.refresh()
    assert complete(engine, requests) == before


def test_the_cache_grows_for_a_longer_prompt_without_losing_tokens() -> None:
    model = build_model(max_position_embeddings=2048)
    engine = build_engine(model)
    late = [request(prompt(600, seed=2), sampling=GREEDY, max_tokens=5)]
    completions: dict[int, Completion] = {}
    first = request(prompt(5), sampling=GREEDY, max_tokens=40, stop_token_ids=())
    engine.run(
        [first],
        completions.__setitem__,
        poll_requests=lambda capacity: [late.pop()] if late else [],
    )
    assert completions[0].ids == hf_generate(model, first.ids, 40)
    assert completions[1].ids == hf_generate(model, prompt(600, seed=2), 5)
