"""What a captured graph says and teaches is what the model does; on a GPU."""

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

ASKED, SAID = 40, 20


def model() -> Any:
    torch.manual_seed(0)
    config = AutoConfig.for_model(
        "llama", vocab_size=500, hidden_size=128, intermediate_size=256, num_hidden_layers=4,
        num_attention_heads=4, num_key_value_heads=2,
    )  # fmt: skip
    made = AutoModelForCausalLM.from_config(config).cuda()
    add_fused_lm_head(made, outputs=("log_probs", "entropy"))
    made.train()
    return made


def rows(groups: int, *, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Of four members each, the prompts and completions of different lengths."""
    draw = torch.Generator().manual_seed(seed)
    prompts = torch.randint(1, 500, (groups, ASKED), generator=draw).repeat_interleave(4, 0)
    ids = torch.cat([prompts, torch.randint(1, 500, (4 * groups, SAID), generator=draw)], 1)
    mask = torch.ones_like(ids)
    for row in range(len(ids)):
        mask[row, : row // 4] = 0
        mask[row, ASKED + 3 + (seed + 5 * row) % (SAID - 3) :] = 0
    return ids.cuda(), mask.cuda()


def trees_of(ids: torch.Tensor, mask: torch.Tensor) -> PrefixTrees:
    trees = build_trees(ids, mask, SAID, width=128)
    assert trees is not None
    return trees


def taught(made: Any, trees: PrefixTrees) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """The log-probabilities, and the gradients of their sum, each with a weight of its own."""
    made.zero_grad()
    with torch.autocast("cuda", torch.bfloat16):
        logps, _ = score_trees(made, trees)
    worth = torch.linspace(-1.0, 1.0, logps.numel(), device="cuda").view_as(logps)
    (logps * worth).sum().backward()
    return logps.detach(), [each.grad.clone() for each in made.parameters()]


def test_trees_match_rows_on_the_gpu() -> None:
    ids, mask = rows(5, seed=0)
    assert trees_match_rows(model(), trees_of(ids, mask), ids, mask)


def test_graphs_give_the_same_logprobs_and_gradients_while_weights_change() -> None:
    plain, played = model(), model()
    said: list[str] = []
    playback = GraphCache(played.base_model, torch.bfloat16, said.append)
    for seed, groups in ((0, 5), (1, 2), (2, 5), (3, 7), (4, 2)):
        trees = trees_of(*rows(groups, seed=seed))
        fitting = playback.pad_to_graph_shape(trees)
        (logps, gradients), (others, theirs) = taught(plain, trees), taught(played, fitting)
        assert (logps - others).abs().max() < 0.05
        for one, other in zip(gradients, theirs, strict=True):
            assert (one - other).norm() <= 0.05 * one.norm() + 1e-6
        with torch.no_grad():
            for weights in zip(plain.parameters(), played.parameters(), strict=True):
                for each in weights:
                    each.add_(gradients[0].new_tensor(0.01) * torch.sign(each))
    assert playback._graphs and not said
