"""The HF decoder against `generate` of transformers and against single forward passes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import MambaConfig, MambaForCausalLM, MistralConfig, MistralForCausalLM

from ludus.errors import ConfigError
from ludus.policy.engine.engine_api import Completion
from ludus.policy.engine.hf_decoder import MIN_SHARED_PREFIX_TOKENS, HFDecoder, shared_prompt_length
from ludus.policy.engine.sampling import SamplingParams
from policy.forwards import (
    ARCHITECTURES,
    CONTEXT,
    GREEDY,
    WORDS,
    complete,
    fresh_logprobs,
    model_of,
    prompt,
    request,
)

SYSTEM = prompt(20, seed=99)
LENGTHS = (3, 9, 1, 17, 9)


def generate_greedily(model: Any, ids: tuple[int, ...], tokens: int = 12) -> tuple[int, ...]:
    """Greedy search of transformers."""
    output = model.generate(
        torch.tensor([ids]), do_sample=False, max_new_tokens=tokens, eos_token_id=1, pad_token_id=0
    )
    return tuple(output[0, len(ids) :].tolist())


def test_tokens_are_counted_while_decoding() -> None:
    decoder, counts = HFDecoder(model_of(ARCHITECTURES[0]), pad_id=0), []

    def is_wanted(index: int) -> bool:
        counts.append(decoder.stats.sampled_tokens)
        return True

    requests = [request(prompt(5, seed=seed), max_tokens=3, stop_token_ids=()) for seed in (1, 2)]
    decoder.run(
        requests, lambda index, completion: counts.append(decoder.stats.sampled_tokens), is_wanted
    )
    assert counts[0] == 2 and counts[-1] == 6 and counts == sorted(counts)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("shared", [(), SYSTEM], ids=["no prefix", "common prefix"])
def test_greedy_replies_are_those_of_transformers(
    architecture: str, shared: tuple[int, ...]
) -> None:
    model = model_of(architecture)
    prompts = [(*shared, *prompt(length, seed=length)) for length in LENGTHS]
    replies = complete(model, [request(ids, sampling=GREEDY) for ids in prompts])
    assert [reply.ids for reply in replies] == [generate_greedily(model, ids) for ids in prompts]
    assert len({reply.ids for reply in replies}) > 2, (
        "the replies differ, so they can be told apart"
    )


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("shared", [(), SYSTEM], ids=["no prefix", "common prefix"])
def test_logprobs_are_those_of_a_fresh_forward_pass(
    architecture: str, shared: tuple[int, ...]
) -> None:
    model = model_of(architecture)
    requests = [
        request(
            (*shared, *prompt(length, seed=at)),
            seed=at,
            sampling=SamplingParams(heat),
            max_tokens=2 + 3 * at,
        )
        for at, (length, heat) in enumerate(zip(LENGTHS, (1.0, 0.5, 1.7, 0.9, 0.0), strict=True))
    ]
    for single, reply in zip(requests, complete(model, requests), strict=True):
        fresh = fresh_logprobs(
            model, single.ids, reply.ids, temperature=single.sampling.temperature or 1.0
        )
        assert reply.logprobs == pytest.approx(fresh, abs=1e-4)


def test_a_common_prefix_is_prefilled_once() -> None:
    model = model_of("llama")
    shapes: list[tuple[int, ...]] = []
    hook = model.register_forward_pre_hook(
        lambda _, __, kwargs: shapes.append(tuple(kwargs["input_ids"].shape)), with_kwargs=True
    )
    try:
        complete(model, [request((*SYSTEM, *prompt(n, seed=n)), max_tokens=1) for n in (2, 4, 3)])
        complete(model, [request(SYSTEM, max_tokens=1, seed=n) for n in range(3)])
    finally:
        hook.remove()
    assert shapes == [(1, 20), (3, 4), (1, 19), (3, 1)]


def test_a_reply_does_not_depend_on_the_rest_of_the_batch() -> None:
    model = model_of("llama")
    requests = [request((*SYSTEM, *prompt(n)), seed=n) for n in LENGTHS]
    together = complete(model, requests)
    assert together == [
        Completion(reply.ids, pytest.approx(reply.logprobs, abs=1e-4), reply.stopped)  # type: ignore[arg-type]
        for single in requests
        for reply in complete(model, [single])
    ]


def test_the_seed_decides_the_reply() -> None:
    model, ids = model_of("gpt2"), prompt(6)
    one, same, other = complete(model, [request(ids, seed=seed) for seed in (7, 7, 8)])
    assert one.ids == same.ids != other.ids


def test_a_reply_ends_at_its_stop_token_or_token_budget() -> None:
    model, ids = model_of("llama"), prompt(5)
    (whole,) = complete(model, [request(ids, sampling=GREEDY, stop_token_ids=())])
    assert len(set(whole.ids)) > 1 and not whole.stopped
    stop = next(token for token in whole.ids if token != whole.ids[0])
    until = whole.ids[: whole.ids.index(stop) + 1]
    short, cut = complete(
        model,
        [
            request(ids, sampling=GREEDY, stop_token_ids=(stop, 0)),
            request(ids, sampling=GREEDY, stop_token_ids=(), max_tokens=5),
        ],
    )
    assert (short.ids, short.stopped) == (until, True)
    assert (cut.ids, cut.stopped) == (whole.ids[:5], False)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_reply_does_not_exceed_the_context(architecture: str) -> None:
    lengths = (CONTEXT + 3, CONTEXT, CONTEXT - 1, CONTEXT - 4, 2)
    replies = complete(
        model_of(architecture),
        [request(prompt(length), stop_token_ids=(), max_tokens=1000) for length in lengths],
    )
    assert [len(reply.ids) for reply in replies] == [0, 0, 1, 4, CONTEXT - 2]
    assert not any(reply.stopped for reply in replies)


@pytest.mark.parametrize("architecture", ["llama", "lfm2"])
def test_ended_rows_leave_the_batch_and_are_delivered_at_once(architecture: str) -> None:
    model, sizes, delivered = model_of(architecture), [], []
    hook = model.register_forward_pre_hook(
        lambda _, __, kwargs: sizes.append(len(kwargs["input_ids"])), with_kwargs=True
    )
    requests = [request(prompt(n + 1), stop_token_ids=(), max_tokens=2 * n + 1) for n in range(4)]
    try:
        HFDecoder(model, pad_id=0).run(
            requests, lambda index, _: delivered.append((index, len(sizes)))
        )
    finally:
        hook.remove()
    assert delivered == [(0, 1), (1, 3), (2, 5), (3, 7)]
    assert sizes == [4, 3, 3, 2, 2, 1, 1], "rows are removed when a quarter of them has ended"


def test_unwanted_requests_are_dropped() -> None:
    delivered: dict[int, Completion] = {}
    model = model_of("llama")
    requests = [request(prompt(4), stop_token_ids=(), max_tokens=30, seed=n) for n in range(3)]
    HFDecoder(model, pad_id=0).run(requests, delivered.__setitem__, lambda index: index == 1)
    assert list(delivered) == [1] and len(delivered[1].ids) == 30


def test_sliding_window_models_do_not_share_a_prefix() -> None:
    make: Any = MistralForCausalLM
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = make(
            MistralConfig(
                vocab_size=WORDS,
                hidden_size=32,
                intermediate_size=48,
                num_hidden_layers=2,
                num_attention_heads=4,
                num_key_value_heads=2,
                sliding_window=8,
                initializer_range=0.3,
            )
        ).eval()
    prompts = [(*SYSTEM, *prompt(length)) for length in LENGTHS]
    replies = complete(model, [request(ids, sampling=GREEDY) for ids in prompts])
    assert [reply.ids for reply in replies] == [generate_greedily(model, ids) for ids in prompts]


def test_a_model_without_kv_cache_is_rejected() -> None:
    make: Any = MambaForCausalLM
    model = make(MambaConfig(vocab_size=WORDS, hidden_size=32, state_size=8, num_hidden_layers=1))
    with pytest.raises(ConfigError, match="MambaForCausalLM"):
        HFDecoder(model, pad_id=0)


def test_the_last_token_of_a_prompt_is_never_shared() -> None:
    assert shared_prompt_length([(1, 2, 3), (1, 2, 4), (1, 2)]) == 1
    assert shared_prompt_length([(1, 2, 3), (1, 2, 3)]) == 2
    assert shared_prompt_length([(5,), (5, 6)]) == 0
    assert len(SYSTEM) > MIN_SHARED_PREFIX_TOKENS
