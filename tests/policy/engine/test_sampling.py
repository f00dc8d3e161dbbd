"""The choice of one token: what may be chosen, how often, and under which settings."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import pytest
import torch

from ludus.errors import ConfigError
from ludus.policy.engine.sampling import SamplingParams, TokenSampler

CHANCES = (0.1, 0.4, 0.0, 0.3, 0.2)
STEPS = 1000


def chosen(sampling: SamplingParams, chances: tuple[float, ...] = CHANCES) -> dict[int, float]:
    """How often each token comes when the random numbers are spread evenly."""
    uniforms = [(step + 0.5) / STEPS for step in range(STEPS)]
    rows = torch.tensor([chances]).log().expand(STEPS, -1)
    ids, _ = TokenSampler([sampling] * STEPS, vocab_size=len(chances), device="cpu").sample(
        rows, uniforms
    )
    return {token: count / STEPS for token, count in sorted(Counter(ids).items())}


def test_tokens_come_as_often_as_they_are_likely() -> None:
    assert chosen(SamplingParams()) == pytest.approx({0: 0.1, 1: 0.4, 3: 0.3, 4: 0.2})


def test_temperature_sharpens_and_zero_takes_the_likeliest() -> None:
    squares = [0.01, 0.16, 0.09, 0.04]
    expected = dict(zip((0, 1, 3, 4), (part / sum(squares) for part in squares), strict=True))
    assert chosen(SamplingParams(temperature=0.5)) == pytest.approx(expected, abs=0.002)
    assert chosen(SamplingParams(temperature=0)) == {1: 1.0}
    assert chosen(SamplingParams(temperature=1e-30)) == {1: 1.0}


@pytest.mark.parametrize(
    ("sampling", "expected"),
    [
        (SamplingParams(top_k=2), {1: 4 / 7, 3: 3 / 7}),
        (SamplingParams(top_k=50), {0: 0.1, 1: 0.4, 3: 0.3, 4: 0.2}),
        (SamplingParams(top_p=0.6), {1: 4 / 7, 3: 3 / 7}),
        (SamplingParams(top_p=0.75), {1: 4 / 9, 3: 3 / 9, 4: 2 / 9}),
        (SamplingParams(top_p=0.01), {1: 1.0}),
        (SamplingParams(top_p=0.5, top_k=2), {1: 1.0}),
    ],
)
def test_only_the_likeliest_are_left(sampling: SamplingParams, expected: dict[int, float]) -> None:
    assert chosen(sampling) == pytest.approx(expected, abs=0.002)


def test_no_random_number_leads_to_what_cannot_be() -> None:
    logits = torch.tensor([[0.3, 0.5, 0.2, 0.0]]).log().expand(2, -1)
    chooser = TokenSampler([SamplingParams()] * 2, vocab_size=4, device="cpu")
    assert chooser.sample(logits, [0.0, math.nextafter(1.0, 0.0)])[0] == [0, 2]


def test_rows_of_a_batch_keep_to_their_own_settings() -> None:
    settings = [
        SamplingParams(0),
        SamplingParams(2.0),
        SamplingParams(top_k=1),
        SamplingParams(top_p=0.6),
    ]
    logits = torch.tensor([CHANCES]).log().expand(4, -1)
    ids, logprobs = TokenSampler(settings, vocab_size=5, device="cpu").sample(logits, [0.99] * 4)
    assert ids == [1, 4, 1, 3]
    roots = sum(math.sqrt(part) for part in CHANCES)
    expected = [0.4, math.sqrt(0.2) / roots, 0.4, 0.3]
    assert logprobs == pytest.approx([math.log(part) for part in expected], abs=1e-5)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"temperature": -1.0}, "A temperature of -1.0 cannot be"),
        ({"temperature": math.nan}, "A temperature of nan cannot be"),
        ({"top_p": 0.0}, "A top_p of 0.0 cannot be"),
        ({"top_p": 1.5}, "A top_p of 1.5 cannot be"),
        ({"top_k": 0}, "A top_k of 0 cannot be"),
    ],
)
def test_settings_that_cannot_be_are_refused(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        SamplingParams(**settings)
