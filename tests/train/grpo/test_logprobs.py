"""Packed episodes have the log-probabilities and gradients of separate rows."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from accelerate import Accelerator
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel
from trl.trainer.utils import add_fused_lm_head

from ludus.data.episode import Episode, StopReason, Tokens
from ludus.train.grpo.logprobs import Layout, LogprobScorer
from ludus.train.grpo.packed_groups import (
    EpisodeTokens,
    pack_groups,
    packed_length,
    supports_packing,
)

VOCABULARY = 200
GPU = torch.cuda.is_available()


def build_model(kind: str = "llama", **changes: Any) -> PreTrainedModel:
    torch.manual_seed(0)
    sizes = {
        "vocab_size": VOCABULARY, "hidden_size": 128, "intermediate_size": 256,
        "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32,
    }  # fmt: skip
    config = AutoConfig.for_model(kind, **{**sizes, **changes})
    model: PreTrainedModel = AutoModelForCausalLM.from_config(config, attn_implementation="sdpa")
    add_fused_lm_head(model, outputs=("log_probs", "entropy"))
    return model.train()


def build_groups(*sizes: int, seed: int = 0) -> list[EpisodeTokens]:
    """Groups of so many episodes with a common prompt, each with two turns."""
    rng = random.Random(seed)

    def tokens(low: int, high: int) -> tuple[int, ...]:
        return tuple(rng.choices(range(1, VOCABULARY), k=rng.randint(low, high)))

    episodes = []
    for size in sizes:
        prompt = tokens(5, 30)
        for _ in range(size):
            parts = [(prompt, 0), (tokens(1, 9), 1), (tokens(1, 5), 0), (tokens(1, 9), 1)]
            ids = tuple(token for part, _ in parts for token in part)
            sampled = tuple(flag for part, flag in parts for _ in part)
            episodes.append(EpisodeTokens(ids, sampled, tuple(-1.0 for flag in sampled if flag)))
    return episodes


def scores_and_gradients(
    model: PreTrainedModel, layout: Layout, episodes: Sequence[EpisodeTokens]
) -> tuple[torch.Tensor, list[torch.Tensor]]:
    accelerator = Accelerator(cpu=not GPU, mixed_precision="bf16" if GPU else "no")
    scorer = LogprobScorer(model.to(accelerator.device), layout, accelerator, 0, checked=True)
    model.zero_grad()
    with scorer.score(episodes) as scores:
        weights = torch.linspace(-1.0, 1.0, len(scores.logprobs), device=accelerator.device)
        (scores.logprobs * weights).sum().backward()
    gradients = [each.grad.clone() for each in model.parameters() if each.grad is not None]
    return scores.logprobs.detach(), gradients


@pytest.mark.parametrize("kind", ["llama", "qwen2", "qwen3"])
@pytest.mark.parametrize("groups", [(4, 4), (1, 3, 1), (1,)])
def test_packed_groups_match_rows(kind: str, groups: tuple[int, ...]) -> None:
    model, episodes = build_model(kind), build_groups(*groups)
    layout = Layout.FLASH if GPU else Layout.MASKED
    logprobs, gradients = scores_and_gradients(model, layout, episodes)
    expected, expected_gradients = scores_and_gradients(model, Layout.PADDED, episodes)
    assert len(logprobs) == sum(sum(each.sampled) for each in episodes)
    tolerance = 0.02 if GPU else 1e-5
    assert (logprobs - expected).abs().mean() < tolerance
    for one, other in zip(gradients, expected_gradients, strict=True):
        assert (one - other).norm() <= (0.05 if GPU else 1e-4) * other.norm() + 1e-6


def test_a_prompt_is_computed_once_for_its_group() -> None:
    episodes = build_groups(8)
    prompt = len(episodes[0].prompt)
    shared = sum(len(each.ids) for each in episodes) - 7 * (prompt - 1)
    # The last token of an episode is predicted, and nothing is predicted from it.
    assert packed_length(episodes) == shared - 8
    packed = pack_groups(episodes, torch.device("cpu"))
    assert packed.input_ids.shape == (1, packed_length(episodes))
    assert packed.segments.tolist()[-1] == packed_length(episodes)


def test_episodes_without_sampled_tokens_have_none() -> None:
    unsampled = EpisodeTokens.of(
        Episode(
            episode_id="x", stop_reason=StopReason.DONE, environment="e", group_id="g",
            tokens=Tokens(ids=(1, 2), logprobs=(None, None), mask=(0, 0)),
        )
    )  # fmt: skip
    assert unsampled == EpisodeTokens((), (), ())
    some, model = build_groups(2), build_model()
    layout = Layout.FLASH if GPU else Layout.MASKED
    expected, _ = scores_and_gradients(model, layout, some)
    logprobs, _ = scores_and_gradients(model, layout, [some[0], unsampled, some[1]])
    torch.testing.assert_close(logprobs, expected, atol=1e-2 if GPU else 1e-5, rtol=0)


def test_observations_after_the_last_reply_are_not_computed() -> None:
    episode = Episode(
        episode_id="x", stop_reason=StopReason.DONE, environment="e", group_id="g",
        tokens=Tokens(
            ids=(1, 2, 3, 4), logprobs=(None, -1.0, -2.0, None), mask=(0, 1, 1, 0)
        ),
    )  # fmt: skip
    assert EpisodeTokens.of(episode) == EpisodeTokens((1, 2, 3), (0, 1, 1), (-1.0, -2.0))


@pytest.mark.skipif(GPU, reason="the layout with a mask is for CPUs")
def test_a_model_that_packing_changes_is_scored_row_by_row() -> None:
    model, episodes = build_model("mistral", sliding_window=4), build_groups(4)
    scorer = LogprobScorer(model, Layout.MASKED, Accelerator(cpu=True), 0)
    with torch.no_grad(), scorer.score(episodes) as scores:
        pass
    assert scorer.layout is Layout.PADDED and model.training
    with torch.no_grad(), scorer.score(episodes) as expected:
        pass
    torch.testing.assert_close(scores.logprobs, expected.logprobs)


@pytest.mark.parametrize(
    ("kind", "changes", "supported"),
    [
        ("llama", {}, True),
        ("qwen3", {}, True),
        ("mistral", {"sliding_window": None}, True),
        # Episodes shorter than the window would not show the difference.
        ("mistral", {"sliding_window": 4096}, False),
        ("qwen2", {"use_sliding_window": True, "max_window_layers": 1}, False),
        ("gemma3_text", {}, False),
        ("gpt2", {}, False),
    ],
)
def test_only_full_attention_with_relative_positions_is_packed(
    kind: str, changes: dict[str, Any], supported: bool
) -> None:
    assert supports_packing(AutoConfig.for_model(kind, **changes)) is supported
