"""Sampling: token frequencies, the random numbers behind them, top_k and top_p."""

from __future__ import annotations

import pytest
import torch

from ludus.policy.engine.sampling import SamplingParams
from ludus.policy.triton_engine.batch_state import BatchState, RowState
from ludus.policy.triton_engine.reference_ops import ReferenceOps, gumbel_noise
from policy.forwards import fresh_logprobs, prompt, request
from policy.triton_engine.tiny_models import build_engine, complete, shared_model

NUM_SAMPLES = 4000


def sample_counts(logits: torch.Tensor, *, temperature: float = 1.0) -> torch.Tensor:
    """How often each token is sampled, among many rows with different seeds."""
    batch = BatchState(NUM_SAMPLES, stops=1, device="cpu")
    batch.load(
        [RowState(0, 7, 0, seed, 1, temperature, 1.0, 0, ()) for seed in range(NUM_SAMPLES)],
        scratch_slot=0,
    )
    ReferenceOps().sample(logits.expand(NUM_SAMPLES, -1), batch)
    return torch.bincount(batch.ids[0], minlength=len(logits))


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_token_frequencies_follow_the_softmax(temperature: float) -> None:
    logits = torch.tensor([2.0, 1.0, 0.5, 0.0, -1.0, -3.0])
    expected = NUM_SAMPLES * torch.softmax(logits / temperature, dim=0)
    counts = sample_counts(logits, temperature=temperature)
    # Chi-squared with 5 degrees of freedom exceeds 20.5 once in a thousand times.
    assert float(((counts - expected) ** 2 / expected).sum()) < 20.5
    assert counts.argmax() == 0


def test_many_unlikely_tokens_have_their_joint_probability() -> None:
    logits = torch.cat([torch.tensor([0.0]), torch.full((1000,), -9.0)])
    weight = 1000 * 2.718281828**-9.0
    frequency = 1 - sample_counts(logits)[0] / NUM_SAMPLES
    assert float(frequency) == pytest.approx(weight / (1 + weight), abs=0.015)


def test_noise_is_independent_between_positions_and_seeds() -> None:
    seeds, positions = torch.tensor([1, 1, 2, -1]), torch.tensor([5, 6, 5, 5])
    noise = gumbel_noise(seeds, positions, 20000)
    assert noise.isfinite().all()
    assert noise.mean(1).tolist() == pytest.approx([0.5772] * 4, abs=0.04)
    correlation = torch.corrcoef(noise) - torch.eye(4)
    assert float(correlation.abs().max()) < 0.03
    assert torch.equal(gumbel_noise(seeds[:1], positions[:1], 20000)[0], noise[0])


def test_rows_with_and_without_filters_share_a_batch() -> None:
    model, ids = shared_model(), prompt(8)
    unfiltered = {
        complete(build_engine(model), [request(ids, seed=seed, max_tokens=1)])[0].ids[0]
        for seed in range(40)
    }
    params = [
        SamplingParams(1.0, top_k=2),
        SamplingParams(1.0),
        SamplingParams(1.0, top_p=0.2),
        SamplingParams(0.0),
    ]
    requests = [
        request(ids, seed=seed, max_tokens=3, sampling=sampling)
        for seed in range(20)
        for sampling in params
    ]
    completions = complete(build_engine(model), requests)
    first_tokens = [{completion.ids[0] for completion in completions[at::4]} for at in range(4)]
    top_k, plain, top_p, greedy = first_tokens
    assert len(top_k) == 2 and len(greedy) == 1 and greedy <= top_k
    assert len(plain) > 5 and plain <= unfiltered
    assert len(top_p) < len(plain)
    for each, completion in zip(requests, completions, strict=True):
        expected = fresh_logprobs(model, each.ids, completion.ids)
        assert completion.logprobs == pytest.approx(expected, abs=1e-4), "before any filter"
