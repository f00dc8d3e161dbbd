"""Prefix trees and CUDA graphs give the model's log-probabilities and gradients; on a GPU."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM
from trl.trainer.utils import add_fused_lm_head

from ludus.train.grpo.graph_cache import GraphCache
from ludus.train.grpo.prefix_sharing import score_trees, trees_match_rows
from ludus.train.grpo.prefix_tree import PrefixTrees, build_trees

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")

PROMPT_LENGTH, COMPLETION_LENGTH = 40, 20


def build_model() -> Any:
    torch.manual_seed(0)
    config = AutoConfig.for_model(
        "llama", vocab_size=500, hidden_size=128, intermediate_size=256, num_hidden_layers=4,
        num_attention_heads=4, num_key_value_heads=2,
    )  # fmt: skip
    model = AutoModelForCausalLM.from_config(config).cuda()
    add_fused_lm_head(model, outputs=("log_probs", "entropy"))
    model.train()
    return model


def build_rows(groups: int, *, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Groups of four rows, with prompts and completions of different lengths."""
    rng = torch.Generator().manual_seed(seed)
    prompts = torch.randint(1, 500, (groups, PROMPT_LENGTH), generator=rng).repeat_interleave(4, 0)
    ids = torch.cat(
        [prompts, torch.randint(1, 500, (4 * groups, COMPLETION_LENGTH), generator=rng)], 1
    )
    mask = torch.ones_like(ids)
    for row in range(len(ids)):
        mask[row, : row // 4] = 0
        mask[row, PROMPT_LENGTH + 3 + (seed + 5 * row) % (COMPLETION_LENGTH - 3) :] = 0
    return ids.cuda(), mask.cuda()


def trees_of_rows(ids: torch.Tensor, mask: torch.Tensor) -> PrefixTrees:
    trees = build_trees(ids, mask, COMPLETION_LENGTH, width=128)
    assert trees is not None
    return trees


def logps_and_gradients(model: Any, trees: PrefixTrees) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """The log-probabilities, and the gradients of a weighted sum of them."""
    model.zero_grad()
    with torch.autocast("cuda", torch.bfloat16):
        logps, _ = score_trees(model, trees)
    weights = torch.linspace(-1.0, 1.0, logps.numel(), device="cuda").view_as(logps)
    (logps * weights).sum().backward()
    return logps.detach(), [each.grad.clone() for each in model.parameters()]


def test_trees_match_rows_on_the_gpu() -> None:
    ids, mask = build_rows(5, seed=0)
    assert trees_match_rows(build_model(), trees_of_rows(ids, mask), ids, mask)


def test_graphs_give_the_same_logprobs_and_gradients_while_weights_change() -> None:
    plain, graphed = build_model(), build_model()
    warnings: list[str] = []
    cache = GraphCache(graphed.base_model, torch.bfloat16, warnings.append)
    for seed, groups in ((0, 5), (1, 2), (2, 5), (3, 7), (4, 2)):
        trees = trees_of_rows(*build_rows(groups, seed=seed))
        padded = cache.pad_to_graph_shape(trees)
        (logps, gradients), (others, theirs) = (
            logps_and_gradients(plain, trees),
            logps_and_gradients(graphed, padded),
        )
        assert (logps - others).abs().max() < 0.05
        for one, other in zip(gradients, theirs, strict=True):
            assert (one - other).norm() <= 0.05 * one.norm() + 1e-6
        with torch.no_grad():
            for weights in zip(plain.parameters(), graphed.parameters(), strict=True):
                for each in weights:
                    each.add_(gradients[0].new_tensor(0.01) * torch.sign(each))
    assert cache._graphs and not warnings
