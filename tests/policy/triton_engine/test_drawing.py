"""Tokens are drawn as likely as they are, from those that the settings leave."""

from __future__ import annotations

import pytest
import torch

from ludus.policy.engine.sampling import SamplingParams, TokenSampler
from ludus.policy.triton_engine import reference_ops
from ludus.policy.triton_engine.batch_state import BatchState, RowState
from ludus.policy.triton_engine.counter_rng import gumbel_noise, to_int64
from ludus.policy.triton_engine.top_k_top_p import min_kept_logit
from policy.forwards import fresh_logprobs, prompt, request
from policy.triton_engine.families import engine_of, model_of, said

DRAWS = 4000


def drawn(logits: torch.Tensor, *, temperature: float = 1.0) -> torch.Tensor:
    """How often each token comes, among many rows with seeds of their own."""
    rows = BatchState(DRAWS, stops=1, device="cpu")
    rows.load(
        [RowState(0, 7, 0, seed, 1, temperature, 1.0, 0, ()) for seed in range(DRAWS)],
        scratch_slot=0,
    )
    reference_ops.sample(logits.expand(DRAWS, -1), rows)
    return torch.bincount(rows.ids[0], minlength=len(logits))


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_tokens_come_as_often_as_they_should(temperature: float) -> None:
    logits = torch.tensor([2.0, 1.0, 0.5, 0.0, -1.0, -3.0])
    expected = DRAWS * torch.softmax(logits / temperature, dim=0)
    counts = drawn(logits, temperature=temperature)
    # Six tokens: a fair draw exceeds 20.5 once in a thousand times.
    assert float(((counts - expected) ** 2 / expected).sum()) < 20.5
    assert counts.argmax() == 0


def test_a_thousand_tokens_of_little_weight_have_it_together() -> None:
    logits = torch.cat([torch.tensor([0.0]), torch.full((1000,), -9.0)])
    expected = 1000 * 2.718281828**-9.0
    share = 1 - drawn(logits)[0] / DRAWS
    assert float(share) == pytest.approx(expected / (1 + expected), abs=0.015)


def test_noise_is_another_at_every_position_and_for_every_seed() -> None:
    seeds, places = torch.tensor([1, 1, 2, to_int64(2**64 - 1)]), torch.tensor([5, 6, 5, 5])
    noise = gumbel_noise(seeds, places, 20000)
    assert noise.isfinite().all()
    assert noise.mean(1).tolist() == pytest.approx([0.5772] * 4, abs=0.04)
    apart = torch.corrcoef(noise) - torch.eye(4)
    assert float(apart.abs().max()) < 0.03
    assert torch.equal(gumbel_noise(seeds[:1], places[:1], 20000)[0], noise[0])


@pytest.mark.parametrize("how", [(1.0, 0.7, None), (0.8, 1.0, 5), (1.3, 0.9, 12), (1.0, 0.001, 3)])
def test_what_is_cut_off_is_what_the_plain_way_cuts_off(
    how: tuple[float, float, int | None],
) -> None:
    made = torch.Generator().manual_seed(4)
    logits = torch.randn(6, 50, generator=made) * 2
    temperature, top_p, top_k = how
    least = min_kept_logit(
        logits,
        torch.full((6,), temperature),
        torch.full((6,), top_p),
        torch.full((6,), top_k or 0),
    )
    chooser = TokenSampler([SamplingParams(*how)] * 6, vocab_size=50, device="cpu")
    plain = chooser._filter_top_k_top_p(torch.softmax(logits.double() / temperature, -1))
    assert torch.equal(logits >= least.unsqueeze(1), plain > 0)


def test_rows_with_and_without_a_cut_share_a_batch() -> None:
    model, ids = model_of(), prompt(8)
    first = {
        said(engine_of(model), [request(ids, seed=seed, max_tokens=1)])[0].ids[0]
        for seed in range(40)
    }
    hows = [
        SamplingParams(1.0, top_k=2),
        SamplingParams(1.0),
        SamplingParams(1.0, top_p=0.2),
        SamplingParams(0.0),
    ]
    asked = [
        request(ids, seed=seed, max_tokens=3, sampling=how) for seed in range(20) for how in hows
    ]
    replies = said(engine_of(model), asked)
    kinds = [{reply.ids[0] for reply in replies[at::4]} for at in range(4)]
    assert len(kinds[0]) == 2 and len(kinds[3]) == 1 and kinds[3] <= kinds[0]
    assert len(kinds[1]) > 5 and kinds[1] <= first
    assert len(kinds[2]) < len(kinds[1])
    for each, reply in zip(asked, replies, strict=True):
        expected = fresh_logprobs(model, each.ids, reply.ids)
        assert reply.logprobs == pytest.approx(expected, abs=1e-4), "before anything is cut off"
