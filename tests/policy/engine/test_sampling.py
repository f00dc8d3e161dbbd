"""Sampling of one token: frequencies, filters and parameters."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import pytest
import torch

from ludus.errors import ConfigError
from ludus.policy.engine.sampling import SamplingParams, TokenSampler

PROBABILITIES = (0.1, 0.4, 0.0, 0.3, 0.2)
STEPS = 1000


def frequencies(
    sampling: SamplingParams, probabilities: tuple[float, ...] = PROBABILITIES
) -> dict[int, float]:
    """How often each token is sampled with evenly spread random numbers."""
    uniforms = [(step + 0.5) / STEPS for step in range(STEPS)]
    rows = torch.tensor([probabilities]).log().expand(STEPS, -1)
    ids, _ = TokenSampler([sampling] * STEPS, device="cpu").sample(rows, uniforms)
    return {token: count / STEPS for token, count in sorted(Counter(ids).items())}


def test_tokens_are_sampled_by_their_probability() -> None:
    assert frequencies(SamplingParams()) == pytest.approx({0: 0.1, 1: 0.4, 3: 0.3, 4: 0.2})


def test_temperature_sharpens_and_zero_is_greedy() -> None:
    squares = [0.01, 0.16, 0.09, 0.04]
    expected = dict(zip((0, 1, 3, 4), (part / sum(squares) for part in squares), strict=True))
    assert frequencies(SamplingParams(temperature=0.5)) == pytest.approx(expected, abs=0.002)
    assert frequencies(SamplingParams(temperature=0)) == {1: 1.0}
    for tiny in (1e-30, 1e-46):  # The second one is 0 as a float32.
        assert frequencies(SamplingParams(temperature=tiny)) == {1: 1.0}


@pytest.mark.parametrize(
    ("sampling", "expected"),
    [
        (SamplingParams(top_k=2), {1: 4 / 7, 3: 3 / 7}),
        (SamplingParams(top_k=50), {0: 0.1, 1: 0.4, 3: 0.3, 4: 0.2}),
        (SamplingParams(top_p=0.6), {1: 4 / 7, 3: 3 / 7}),
        (SamplingParams(top_p=0.75), {1: 4 / 9, 3: 3 / 9, 4: 2 / 9}),
        (SamplingParams(top_p=0.01), {1: 1.0}),
        (SamplingParams(top_p=1e-46), {1: 1.0}),
        (SamplingParams(top_p=0.5, top_k=2), {1: 1.0}),
    ],
)
def test_top_k_and_top_p_keep_the_most_likely_tokens(
    sampling: SamplingParams, expected: dict[int, float]
) -> None:
    assert frequencies(sampling) == pytest.approx(expected, abs=0.002)


def test_tokens_of_probability_zero_are_never_sampled() -> None:
    logits = torch.tensor([[0.3, 0.5, 0.2, 0.0]]).log().expand(2, -1)
    sampler = TokenSampler([SamplingParams()] * 2, device="cpu")
    assert sampler.sample(logits, [0.0, math.nextafter(1.0, 0.0)])[0] == [0, 2]


def test_rows_of_a_batch_have_their_own_parameters() -> None:
    settings = [
        SamplingParams(0),
        SamplingParams(2.0),
        SamplingParams(top_k=1),
        SamplingParams(top_p=0.6),
    ]
    logits = torch.tensor([PROBABILITIES]).log().expand(4, -1)
    ids, logprobs = TokenSampler(settings, device="cpu").sample(logits, [0.99] * 4)
    assert ids == [1, 4, 1, 3]
    roots = sum(math.sqrt(part) for part in PROBABILITIES)
    expected = [0.4, math.sqrt(0.2) / roots, 0.4, 0.3]
    assert logprobs == pytest.approx([math.log(part) for part in expected], abs=1e-5)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", -1.0),
        ("temperature", math.nan),
        ("top_p", 0.0),
        ("top_p", 1.5),
        ("top_k", 0),
    ],
)
def test_parameters_out_of_range_are_rejected(name: str, value: float) -> None:
    params: dict[str, Any] = {name: value}
    with pytest.raises(ConfigError) as caught:
        SamplingParams(**params)
    assert f"`{name}`" in str(caught.value) and str(value) in str(caught.value)
