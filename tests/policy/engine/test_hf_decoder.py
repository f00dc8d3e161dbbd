"""Batches of replies against the plain way: transformers' own, and one fresh forward pass."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import MambaConfig, MambaForCausalLM, MistralConfig, MistralForCausalLM

from ludus.errors import ConfigError
from ludus.policy.engine.engine_api import Completion
from ludus.policy.engine.hf_decoder import MIN_SHARED_PREFIX_TOKENS, HFDecoder, common_prefix_length
from ludus.policy.engine.sampling import SamplingParams
from policy.forwards import (
    ARCHITECTURES,
    CONTEXT,
    GREEDY,
    WORDS,
    answers,
    fresh_logprobs,
    model_of,
    prompt,
    request,
)

SYSTEM = prompt(20, seed=99)
LENGTHS = (3, 9, 1, 17, 9)


def alone(model: Any, ids: tuple[int, ...], tokens: int = 12) -> tuple[int, ...]:
    """What transformers' own greedy search says."""
    made = model.generate(
        torch.tensor([ids]), do_sample=False, max_new_tokens=tokens, eos_token_id=1, pad_token_id=0
    )
    return tuple(made[0, len(ids) :].tolist())


def test_tokens_are_counted_while_replies_are_unfinished() -> None:
    decoder, counts = HFDecoder(model_of(ARCHITECTURES[0]), pad_id=0), []

    def wanted(at: int) -> bool:
        counts.append(decoder.stats.sampled_tokens)
        return True

    asked = [request(prompt(5, seed=seed), max_tokens=3, stop_token_ids=()) for seed in (1, 2)]
    decoder.run(asked, lambda at, sampled: counts.append(decoder.stats.sampled_tokens), wanted)
    assert counts[0] == 2 and counts[-1] == 6 and counts == sorted(counts)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("shared", [(), SYSTEM], ids=["nothing in common", "a common prefix"])
def test_greedy_replies_are_those_of_transformers(
    architecture: str, shared: tuple[int, ...]
) -> None:
    model = model_of(architecture)
    prompts = [(*shared, *prompt(length, seed=length)) for length in LENGTHS]
    said = answers(model, [request(ids, sampling=GREEDY) for ids in prompts])
    assert [reply.ids for reply in said] == [alone(model, ids) for ids in prompts]
    assert len({reply.ids for reply in said}) > 2, "the replies differ, so they can be told apart"


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("shared", [(), SYSTEM], ids=["nothing in common", "a common prefix"])
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
    for asked, reply in zip(requests, answers(model, requests), strict=True):
        fresh = fresh_logprobs(
            model, asked.ids, reply.ids, temperature=asked.sampling.temperature or 1.0
        )
        assert reply.logprobs == pytest.approx(fresh, abs=1e-4)


def test_a_common_prefix_is_read_once_for_all() -> None:
    model = model_of("llama")
    read: list[tuple[int, ...]] = []
    watch = model.register_forward_pre_hook(
        lambda _, __, given: read.append(tuple(given["input_ids"].shape)), with_kwargs=True
    )
    try:
        answers(model, [request((*SYSTEM, *prompt(n, seed=n)), max_tokens=1) for n in (2, 4, 3)])
        answers(model, [request(SYSTEM, max_tokens=1, seed=n) for n in range(3)])
    finally:
        watch.remove()
    assert read == [(1, 20), (3, 4), (1, 19), (3, 1)]


def test_a_reply_does_not_depend_on_who_else_is_in_the_batch() -> None:
    model = model_of("llama")
    requests = [request((*SYSTEM, *prompt(n)), seed=n) for n in LENGTHS]
    together = answers(model, requests)
    assert together == [
        Completion(said.ids, pytest.approx(said.logprobs, abs=1e-4), said.stopped)  # type: ignore[arg-type]
        for asked in requests
        for said in answers(model, [asked])
    ]


def test_the_seed_decides_the_reply() -> None:
    model, ids = model_of("gpt2"), prompt(6)
    one, same, other = answers(model, [request(ids, seed=seed) for seed in (7, 7, 8)])
    assert one.ids == same.ids != other.ids


def test_a_reply_ends_with_its_own_stop_or_its_own_budget() -> None:
    model, ids = model_of("llama"), prompt(5)
    (whole,) = answers(model, [request(ids, sampling=GREEDY, stop_token_ids=())])
    assert len(set(whole.ids)) > 1 and not whole.stopped
    stop = next(token for token in whole.ids if token != whole.ids[0])
    until = whole.ids[: whole.ids.index(stop) + 1]
    short, cut = answers(
        model,
        [
            request(ids, sampling=GREEDY, stop_token_ids=(stop, 0)),
            request(ids, sampling=GREEDY, stop_token_ids=(), max_tokens=5),
        ],
    )
    assert (short.ids, short.stopped) == (until, True)
    assert (cut.ids, cut.stopped) == (whole.ids[:5], False)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_the_context_is_the_most_that_a_reply_can_fill(architecture: str) -> None:
    lengths = (CONTEXT + 3, CONTEXT, CONTEXT - 1, CONTEXT - 4, 2)
    said = answers(
        model_of(architecture),
        [request(prompt(length), stop_token_ids=(), max_tokens=1000) for length in lengths],
    )
    assert [len(reply.ids) for reply in said] == [0, 0, 1, 4, CONTEXT - 2]
    assert not any(reply.stopped for reply in said)


@pytest.mark.parametrize("architecture", ["llama", "lfm2"])
def test_what_has_ended_leaves_the_batch_and_is_handed_over_at_once(architecture: str) -> None:
    model, sizes, handed = model_of(architecture), [], []
    watch = model.register_forward_pre_hook(
        lambda _, __, given: sizes.append(len(given["input_ids"])), with_kwargs=True
    )
    requests = [request(prompt(n + 1), stop_token_ids=(), max_tokens=2 * n + 1) for n in range(4)]
    try:
        HFDecoder(model, pad_id=0).run(requests, lambda at, _: handed.append((at, len(sizes))))
    finally:
        watch.remove()
    assert handed == [(0, 1), (1, 3), (2, 5), (3, 7)]
    assert sizes == [4, 4, 4, 2, 2, 1, 1], "rows go when half of them have ended"


def test_what_is_not_wanted_any_more_is_dropped() -> None:
    handed: dict[int, Completion] = {}
    model = model_of("llama")
    requests = [request(prompt(4), stop_token_ids=(), max_tokens=30, seed=n) for n in range(3)]
    HFDecoder(model, pad_id=0).run(requests, handed.__setitem__, lambda at: at == 1)
    assert list(handed) == [1] and len(handed[1].ids) == 30


def test_a_model_whose_window_slides_reads_each_prompt_for_itself() -> None:
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
    said = answers(model, [request(ids, sampling=GREEDY) for ids in prompts])
    assert [reply.ids for reply in said] == [alone(model, ids) for ids in prompts]


def test_a_model_whose_cache_is_of_another_kind_is_refused_and_not_sampled_without_it() -> None:
    make: Any = MambaForCausalLM
    model = make(MambaConfig(vocab_size=WORDS, hidden_size=32, state_size=8, num_hidden_layers=1))
    with pytest.raises(
        ConfigError, match="MambaForCausalLM keeps what it has read in a way of its"
    ):
        HFDecoder(model, pad_id=0)


def test_the_last_token_of_a_prompt_is_never_common() -> None:
    assert common_prefix_length([(1, 2, 3), (1, 2, 4), (1, 2)]) == 1
    assert common_prefix_length([(1, 2, 3), (1, 2, 3)]) == 2
    assert common_prefix_length([(5,), (5, 6)]) == 0
    assert len(SYSTEM) > MIN_SHARED_PREFIX_TOKENS
