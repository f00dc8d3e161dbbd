"""Prefix sharing: trees give the same log-probabilities, gradients and training as rows."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModelForCausalLM
from trl.trainer.utils import add_fused_lm_head

from ludus import grpo
from ludus.train import Lora
from ludus.train.acceleration import supports_cuda_graphs
from ludus.train.grpo import prefix_sharing
from ludus.train.grpo.prefix_sharing import (
    PrefixSharingMixin,
    group_by_prompt,
    score_trees,
    supports_prefix_trees,
    trees_match_rows,
)
from ludus.train.grpo.prefix_tree import LANE_LENGTH_MULTIPLE, PrefixTrees, build_trees
from train.grpo.toy_environments import PICK, small_config
from train.short_runs import read_curve

PROMPT_LENGTH, COMPLETION_LENGTH = 30, 12
HIDDEN_SIZE = 32


def build_model(kind: str, **changes: Any) -> Any:
    torch.manual_seed(0)
    shape: dict[str, Any] = {
        "vocab_size": 90, "hidden_size": HIDDEN_SIZE, "intermediate_size": 64,
        "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8,
    }  # fmt: skip
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **{**shape, **changes}))
    for weights in model.parameters():
        # Large weights, so that attention to other tokens matters.
        weights.data.mul_(4.0)
    add_fused_lm_head(model, outputs=("log_probs", "entropy"))
    return model


def build_rows(*groups: tuple[int, list[int]]) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows of groups, given by the length of the prompt and those of the completions."""
    rng = torch.Generator().manual_seed(1)
    ids, mask = [], []
    for prompt_length, lengths in groups:
        prompt = torch.randint(1, 90, (PROMPT_LENGTH,), generator=rng)
        for length in lengths:
            ids.append(
                torch.cat([prompt, torch.randint(1, 90, (COMPLETION_LENGTH,), generator=rng)])
            )
            mask.append(
                torch.tensor([0] * (PROMPT_LENGTH - prompt_length) + [1] * (prompt_length + length))
            )
            mask[-1] = torch.nn.functional.pad(mask[-1], (0, COMPLETION_LENGTH - length))
    return torch.stack(ids), torch.stack(mask)


GROUPS = ((30, [12, 7, 1, 12]), (21, [3, 3, 0]), (30, [5]), (9, [4, 11, 12, 2]))


def trees_of(ids: torch.Tensor, mask: torch.Tensor, width: int = HIDDEN_SIZE) -> PrefixTrees:
    trees = build_trees(ids, mask, COMPLETION_LENGTH, width=width)
    assert trees is not None
    return trees


def score_rows(model: Any, ids: torch.Tensor, mask: torch.Tensor) -> tuple[Any, Any]:
    labels = ids.masked_fill(mask == 0, -100)
    labels[:, :PROMPT_LENGTH] = -100
    output = model(input_ids=ids, attention_mask=mask, labels=labels, fused_lm_head=True)
    return output.log_probs[:, -COMPLETION_LENGTH:], output.entropy[:, -COMPLETION_LENGTH:]


@pytest.mark.parametrize("kind", ["llama", "mistral", "qwen2", "qwen3"])
def test_trees_give_the_logprobs_entropies_and_gradients_of_rows(kind: str) -> None:
    model, (ids, mask) = build_model(kind, sliding_window=None), build_rows(*GROUPS)
    trees, weights = trees_of(ids, mask), torch.randn(len(ids), COMPLETION_LENGTH)
    results = []
    for scores in (score_rows(model, ids, mask), score_trees(model, trees)):
        model.zero_grad()
        (scores[0] * weights).sum().backward()
        gradients = [each.grad.clone() for each in model.parameters()]
        results.append((scores, gradients))
    (row_scores, row_gradients), (tree_scores, tree_gradients) = results
    for one, other in zip(row_scores, tree_scores, strict=True):
        torch.testing.assert_close(one, other, atol=1e-3, rtol=1e-3)
    for one, other in zip(row_gradients, tree_gradients, strict=True):
        assert (one - other).abs().max() <= 1e-3 * one.abs().max()
    assert trees_match_rows(model, trees, ids, mask)


def test_each_prompt_is_laid_out_once_and_trees_share_lanes() -> None:
    ids, mask = build_rows(*GROUPS)
    trees = trees_of(ids, mask)
    tree_sizes = {30 - 1 + 36, 21 - 1 + 9, 30 - 1 + 6, 9 - 1 + 33}
    assert int((trees.tree_ids >= 0).sum()) == sum(tree_sizes)
    lanes, length = trees.input_ids.shape
    assert length % LANE_LENGTH_MULTIPLE == 0 and lanes < len(tree_sizes)
    assert int((trees.labels >= 0).sum()) == int(mask[:, -COMPLETION_LENGTH:].sum())
    assert torch.equal(trees.labels[trees.labels >= 0].sort()[0], completion_tokens(ids, mask))


def completion_tokens(ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    return ids[:, -COMPLETION_LENGTH:][mask[:, -COMPLETION_LENGTH:] > 0].sort()[0]


def test_a_branch_attends_to_the_trunk_and_to_itself_only() -> None:
    trees = trees_of(*build_rows((30, [12, 12, 12, 12])))
    mask = trees.attention_mask()[0, 0]
    second = range(29 + 13, 29 + 26)
    assert mask[second[5]].nonzero().flatten().tolist() == [*range(29), *second[:6]]
    # Padding attends to padding: otherwise it would become NaN.
    assert mask.any(1).all()


def test_padding_changes_no_scores() -> None:
    model, (ids, mask) = build_model("llama"), build_rows(*GROUPS)
    trees = trees_of(ids, mask)
    lanes, length = trees.input_ids.shape
    padded = trees.pad_to(lanes + 2, length + 40)
    assert padded.input_ids.shape == (lanes + 2, length + 40)
    for one, other in zip(score_trees(model, trees), score_trees(model, padded), strict=True):
        torch.testing.assert_close(one, other, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(
    ("groups", "why"),
    [
        ([(30, [4]), (30, [4]), (29, [4])], "no two rows share a prompt"),
        ([(0, [12, 12]), (30, [12, 12])], "a branch must start with a prompt token"),
    ],
)
def test_no_trees_where_they_save_nothing(groups: list[tuple[int, list[int]]], why: str) -> None:
    assert build_trees(*build_rows(*groups), COMPLETION_LENGTH, width=HIDDEN_SIZE) is None, why


def test_no_trees_where_attention_outweighs_the_linear_layers() -> None:
    ids, mask = build_rows((30, [12] * 16))
    assert build_trees(ids, mask, COMPLETION_LENGTH, width=1) is None
    assert build_trees(ids, mask, COMPLETION_LENGTH, width=1000) is not None


@pytest.mark.parametrize(
    ("kind", "changes"),
    [("mistral", {"sliding_window": 4}), ("gpt2", {"n_embd": 32, "n_head": 4, "n_layer": 2})],
)
def test_a_mismatch_between_trees_and_rows_is_detected(kind: str, changes: dict[str, Any]) -> None:
    model, (ids, mask) = build_model(kind, **changes), build_rows(*GROUPS)
    model.train()
    assert not trees_match_rows(model, trees_of(ids, mask), ids, mask)
    assert model.training


@pytest.mark.parametrize(
    ("kind", "changes", "supported"),
    [
        ("llama", {}, True),
        ("qwen3", {}, True),
        ("mistral", {"sliding_window": None}, True),
        # Rows shorter than the window would not show the difference.
        ("mistral", {"sliding_window": 4096}, False),
        ("qwen2", {"use_sliding_window": True, "max_window_layers": 1}, False),
        ("gemma3_text", {}, False),
        ("gpt2", {}, False),
    ],
)
def test_only_full_attention_with_relative_positions_supports_trees(
    kind: str, changes: dict[str, Any], supported: bool
) -> None:
    config = AutoConfig.for_model(kind, **changes)
    config._attn_implementation = "sdpa"
    assert supports_prefix_trees(config) is supported
    config._attn_implementation = "eager"
    assert not supports_prefix_trees(config)


def test_rows_with_the_same_prompt_become_adjacent() -> None:
    prompts = torch.tensor([[0, 1], [2, 3], [0, 1], [4, 5], [2, 3], [0, 1], [4, 5], [2, 3]])
    batches = [
        {
            "prompt_ids": prompts[at : at + 4], "advantages": torch.arange(at, at + 4.0),
            "names": list("abcdefgh"[at : at + 4]), "num_items_in_batch": torch.tensor(7),
            "old_per_token_logps": None,
        }
        for at in (0, 4)
    ]  # fmt: skip
    grouped = group_by_prompt(batches)
    assert [batch["prompt_ids"][:, 0].tolist() for batch in grouped] == [[0, 0, 0, 2], [2, 2, 4, 4]]
    assert [batch["advantages"].tolist() for batch in grouped] == [[0, 2, 5, 1], [4, 7, 3, 6]]
    assert ["".join(batch["names"]) for batch in grouped] == ["acfb", "ehdg"]
    assert all(int(batch["num_items_in_batch"]) == 7 for batch in grouped)
    assert all(batch["old_per_token_logps"] is None for batch in grouped)


@pytest.fixture
def tree_calls(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of rows of each call of `score_trees`."""
    counts: list[int] = []

    def count_rows(model: Any, trees: PrefixTrees, entropy: bool = True) -> Any:
        counts.append(len(trees.token_index))
        return score_trees(model, trees, entropy)

    monkeypatch.setattr(prefix_sharing, "score_trees", count_rows)
    return counts


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "model.safetensors")


@pytest.mark.parametrize("changes", [{}, {"batch_size": 4}, {"beta": 0.1, "batch_size": 4}])
def test_prefix_sharing_does_not_change_training(
    model: Path, tmp_path: Path, tree_calls: list[int], monkeypatch: pytest.MonkeyPatch,
    changes: dict[str, Any],
) -> None:  # fmt: skip
    # Plain SGD: Adam would make a whole step of a gradient that is only rounding.
    config = small_config(
        groups=4, seed=1, overrides={"optim": "sgd"}, learning_rate=0.1, **changes
    )
    grpo(PICK, str(model), tmp_path / "trees", config)
    assert tree_calls
    calls = len(tree_calls)
    monkeypatch.setattr(PrefixSharingMixin, "shares_prefixes", False)
    grpo(PICK, str(model), tmp_path / "rows", config)
    assert len(tree_calls) == calls
    base, trees, rows = map(weights, (model, tmp_path / "trees", tmp_path / "rows"))
    change = max(float((base[name] - trees[name]).abs().max()) for name in base)
    difference = max(float((rows[name] - trees[name]).abs().max()) for name in base)
    assert change > 1e-4 and difference < 1e-2 * change
    assert all(line["computed_share"] < 0.7 for line in read_curve(tmp_path / "trees"))
    for name in ("loss", "entropy", "grad_norm"):
        logs = [[line[name] for line in read_curve(tmp_path / run)] for run in ("trees", "rows")]
        assert logs[0] == pytest.approx(logs[1], abs=1e-4)


@pytest.mark.parametrize("mode", ["skip", "keep"])
def test_a_batch_without_loss_tokens_is_no_check(model: Path, tmp_path: Path, mode: str) -> None:
    mask_all = {"mask_truncated_completions": "true"}
    config = small_config(
        groups=4, steps=1, max_episode_tokens=3, zero_variance_groups=mode, overrides=mask_all
    )
    grpo(PICK, str(model), tmp_path / "out", config)
    assert len(read_curve(tmp_path / "out")) == 1


def test_a_model_that_fails_the_check_is_trained_row_by_row(
    model: Path, tmp_path: Path, tree_calls: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prefix_sharing, "trees_match_rows", lambda *_: False)
    grpo(PICK, str(model), tmp_path / "out", small_config(groups=4))
    assert not tree_calls and len(read_curve(tmp_path / "out")) == 2


def test_graphs_are_captured_of_the_trained_model_not_the_reference(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_trained_model: list[bool] = []

    def record(trainer: Any, core: Any) -> None:
        is_trained_model.append(core is trainer.model)

    monkeypatch.setattr(PrefixSharingMixin, "_build_graph_cache", record)
    # The reference model is scored first.
    grpo(PICK, str(model), tmp_path / "out", small_config(groups=4, steps=1, beta=0.1))
    assert is_trained_model == [True]


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, True),
        ({"lora": Lora(rank=2)}, False),
        ({"gradient_checkpointing": True}, False),
    ],
)
def test_graphs_need_full_weights(
    changes: dict[str, Any], expected: bool, model: Path, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    supported: list[bool] = []

    def record(trainer: Any, core: Any) -> None:
        supported.append(supports_cuda_graphs(trainer, trainer.distributed))

    monkeypatch.setattr(PrefixSharingMixin, "_build_graph_cache", record)
    config = small_config(**{"groups": 4, "group_size": 4, "steps": 1, "batch_size": 16, **changes})
    grpo(PICK, str(model), tmp_path / "out", config)
    assert supported == [expected]


def test_graphs_are_not_replayed_where_gradients_accumulate() -> None:
    class Trainer(PrefixSharingMixin):
        pass

    trainer, cache = Trainer(), SimpleNamespace(enabled=True)
    trainer._graph_cache = cast(Any, cache)
    with trainer.graph_replay(True):
        assert cache.enabled and trainer._graph_cache is not None
    with trainer.graph_replay(False):
        assert not cache.enabled
        # As the first step does it, which finds out only then whether prefixes can be shared.
        trainer._graph_cache = cast(Any, built := SimpleNamespace(enabled=True))
        trainer._enable_graphs(trainer._graphs_allowed)
        assert not built.enabled
    assert built.enabled
