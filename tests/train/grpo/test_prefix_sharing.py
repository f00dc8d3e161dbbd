"""A prompt that is read once for its whole group teaches what it teaches when read for each."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModelForCausalLM
from trl.trainer.utils import add_fused_lm_head

from ludus import grpo
from ludus.train import Lora
from ludus.train.grpo import prefix_sharing
from ludus.train.grpo.prefix_sharing import (
    PrefixSharingMixin,
    group_by_prompt,
    score_trees,
    supports_prefix_trees,
    trees_match_rows,
)
from ludus.train.grpo.prefix_tree import LANE_LENGTH_MULTIPLE, PrefixTrees, build_trees
from ludus.train.speed.cuda_graphs import supports_cuda_graphs
from train.grpo.toy_environments import PICK, small_config
from train.lessons import curve

ASKED, SAID = 30, 12
WIDTH = 32


def made(kind: str, **more: Any) -> Any:
    torch.manual_seed(0)
    shape: dict[str, Any] = {
        "vocab_size": 90, "hidden_size": WIDTH, "intermediate_size": 64, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8,
    }  # fmt: skip
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **{**shape, **more}))
    for weights in model.parameters():
        # So that what is seen matters to what is said.
        weights.data.mul_(4.0)
    add_fused_lm_head(model, outputs=("log_probs", "entropy"))
    return model


def rows(*groups: tuple[int, list[int]]) -> tuple[torch.Tensor, torch.Tensor]:
    """Of each group, the length of its prompt and those of its members' completions."""
    draw = torch.Generator().manual_seed(1)
    ids, mask = [], []
    for asked, lengths in groups:
        prompt = torch.randint(1, 90, (ASKED,), generator=draw)
        for said in lengths:
            ids.append(torch.cat([prompt, torch.randint(1, 90, (SAID,), generator=draw)]))
            mask.append(torch.tensor([0] * (ASKED - asked) + [1] * (asked + said)))
            mask[-1] = torch.nn.functional.pad(mask[-1], (0, SAID - said))
    return torch.stack(ids), torch.stack(mask)


MANY = ((30, [12, 7, 1, 12]), (21, [3, 3, 0]), (30, [5]), (9, [4, 11, 12, 2]))


def trees_of(ids: torch.Tensor, mask: torch.Tensor, width: int = WIDTH) -> PrefixTrees:
    trees = build_trees(ids, mask, SAID, width=width)
    assert trees is not None
    return trees


def by_row(model: Any, ids: torch.Tensor, mask: torch.Tensor) -> tuple[Any, Any]:
    labels = ids.masked_fill(mask == 0, -100)
    labels[:, :ASKED] = -100
    said = model(input_ids=ids, attention_mask=mask, labels=labels, fused_lm_head=True)
    return said.log_probs[:, -SAID:], said.entropy[:, -SAID:]


@pytest.mark.parametrize("kind", ["llama", "mistral", "qwen2", "qwen3"])
def test_trees_give_the_logprobs_entropies_and_gradients_of_rows(kind: str) -> None:
    model, (ids, mask) = made(kind, sliding_window=None), rows(*MANY)
    trees, worth = trees_of(ids, mask), torch.randn(len(ids), SAID)
    found = []
    for said in (by_row(model, ids, mask), score_trees(model, trees)):
        model.zero_grad()
        (said[0] * worth).sum().backward()
        gradients = [weights.grad.clone() for weights in model.parameters()]
        found.append((said, gradients))
    (rows_said, rows_taught), (trees_said, trees_taught) = found
    for one, other in zip(rows_said, trees_said, strict=True):
        torch.testing.assert_close(one, other, atol=1e-3, rtol=1e-3)
    for one, other in zip(rows_taught, trees_taught, strict=True):
        assert (one - other).abs().max() <= 1e-3 * one.abs().max()
    assert trees_match_rows(model, trees, ids, mask)


def test_each_prompt_is_laid_out_once_and_trees_share_lanes() -> None:
    ids, mask = rows(*MANY)
    trees = trees_of(ids, mask)
    of_trees = {30 - 1 + 36, 21 - 1 + 9, 30 - 1 + 6, 9 - 1 + 33}
    known = trees.tree_ids >= 0
    assert int(known.sum()) == sum(of_trees)
    assert trees.input_ids.shape[1] % LANE_LENGTH_MULTIPLE == 0 and trees.input_ids.shape[0] < len(
        of_trees
    )
    assert int((trees.labels >= 0).sum()) == int(mask[:, -SAID:].sum())
    assert torch.equal(trees.labels[trees.labels >= 0].sort()[0], trees_labels(ids, mask))


def trees_labels(ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    return ids[:, -SAID:][mask[:, -SAID:] > 0].sort()[0]


def test_a_branch_attends_to_the_trunk_and_to_itself_only() -> None:
    trees = trees_of(*rows((30, [12, 12, 12, 12])))
    seen = trees.attention_mask()[0, 0]
    second = range(29 + 13, 29 + 26)
    assert seen[second[5]].nonzero().flatten().tolist() == [*range(29), *second[:6]]
    # What fills up a lane sees something, or it would be made of no numbers at all.
    assert seen.any(1).all()


def test_padding_changes_no_scores() -> None:
    model, (ids, mask) = made("llama"), rows(*MANY)
    trees = trees_of(ids, mask)
    lanes, length = trees.input_ids.shape
    more = trees.pad_to(lanes + 2, length + 40)
    assert more.input_ids.shape == (lanes + 2, length + 40)
    for one, other in zip(score_trees(model, trees), score_trees(model, more), strict=True):
        torch.testing.assert_close(one, other, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(
    ("groups", "why"),
    [
        ([(30, [4]), (30, [4]), (29, [4])], "nobody shares a prompt"),
        ([(0, [12, 12]), (30, [12, 12])], "there is no token to begin a branch with"),
    ],
)
def test_no_trees_where_they_save_nothing(groups: list[tuple[int, list[int]]], why: str) -> None:
    assert build_trees(*rows(*groups), SAID, width=WIDTH) is None, why


def test_no_trees_where_attention_outweighs_the_linear_layers() -> None:
    ids, mask = rows((30, [12] * 16))
    assert build_trees(ids, mask, SAID, width=1) is None
    assert build_trees(ids, mask, SAID, width=1000) is not None


@pytest.mark.parametrize(
    ("kind", "more"),
    [("mistral", {"sliding_window": 4}), ("gpt2", {"n_embd": 32, "n_head": 4, "n_layer": 2})],
)
def test_a_mismatch_between_trees_and_rows_is_detected(kind: str, more: dict[str, Any]) -> None:
    model, (ids, mask) = made(kind, **more), rows(*MANY)
    model.train()
    assert not trees_match_rows(model, trees_of(ids, mask), ids, mask)
    assert model.training


@pytest.mark.parametrize(
    ("kind", "more", "sees"),
    [
        ("llama", {}, True),
        ("qwen3", {}, True),
        ("mistral", {"sliding_window": None}, True),
        # Shorter rows than that would not give it away.
        ("mistral", {"sliding_window": 4096}, False),
        ("qwen2", {"use_sliding_window": True, "max_window_layers": 1}, False),
        ("gemma3_text", {}, False),
        ("gpt2", {}, False),
    ],
)
def test_only_full_attention_with_relative_positions_supports_trees(
    kind: str, more: dict[str, Any], sees: bool
) -> None:
    config = AutoConfig.for_model(kind, **more)
    config._attn_implementation = "sdpa"
    assert supports_prefix_trees(config) is sees
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
    found = group_by_prompt(batches)
    assert [batch["prompt_ids"][:, 0].tolist() for batch in found] == [[0, 0, 0, 2], [2, 2, 4, 4]]
    assert [batch["advantages"].tolist() for batch in found] == [[0, 2, 5, 1], [4, 7, 3, 6]]
    assert ["".join(batch["names"]) for batch in found] == ["acfb", "ehdg"]
    assert all(int(batch["num_items_in_batch"]) == 7 for batch in found)
    assert all(batch["old_per_token_logps"] is None for batch in found)


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many rows were read as trees, each time."""
    counts: list[int] = []

    def counted(model: Any, trees: PrefixTrees, entropy: bool = True) -> Any:
        counts.append(len(trees.token_index))
        return score_trees(model, trees, entropy)

    monkeypatch.setattr(prefix_sharing, "score_trees", counted)
    return counts


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "model.safetensors")


@pytest.mark.parametrize("more", [{}, {"batch_size": 4}, {"beta": 0.1, "batch_size": 4}])
def test_prefix_sharing_does_not_change_training(
    model: Path, tmp_path: Path, read: list[int], monkeypatch: pytest.MonkeyPatch,
    more: dict[str, Any],
) -> None:  # fmt: skip
    # Plain descent: another one would make a whole step of a gradient that is only rounding.
    settings = small_config(groups=4, seed=1, overrides={"optim": "sgd"}, learning_rate=0.1, **more)
    grpo(PICK, str(model), tmp_path / "trees", settings)
    assert read
    seen = len(read)
    monkeypatch.setattr(PrefixSharingMixin, "reads_trees", False)
    grpo(PICK, str(model), tmp_path / "rows", settings)
    assert len(read) == seen
    base, trees, one_by_one = map(weights, (model, tmp_path / "trees", tmp_path / "rows"))
    moved = max(float((base[name] - trees[name]).abs().max()) for name in base)
    apart = max(float((one_by_one[name] - trees[name]).abs().max()) for name in base)
    assert moved > 1e-4 and apart < 1e-2 * moved
    assert all(line["read"] < 0.7 for line in curve(tmp_path / "trees"))
    for name in ("loss", "entropy", "grad_norm"):
        logs = [[line[name] for line in curve(tmp_path / way)] for way in ("trees", "rows")]
        assert logs[0] == pytest.approx(logs[1], abs=1e-4)


@pytest.mark.parametrize("mode", ["skip", "keep"])
def test_a_batch_without_loss_tokens_is_no_check(model: Path, tmp_path: Path, mode: str) -> None:
    cut = {"mask_truncated_completions": "true"}
    settings = small_config(
        groups=4, steps=1, max_episode_tokens=3, zero_variance_groups=mode, overrides=cut
    )
    grpo(PICK, str(model), tmp_path / "out", settings)
    assert len(curve(tmp_path / "out")) == 1


def test_a_model_that_fails_the_check_is_trained_row_by_row(
    model: Path, tmp_path: Path, read: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*_: Any) -> bool:
        return False

    monkeypatch.setattr(prefix_sharing, "trees_match_rows", never)
    grpo(PICK, str(model), tmp_path / "out", small_config(groups=4))
    assert not read and len(curve(tmp_path / "out")) == 2


def test_graphs_are_captured_of_the_trained_model_not_the_reference(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    learns: list[bool] = []

    def noted(trainer: Any, core: Any) -> None:
        learns.append(core is trainer.model)

    monkeypatch.setattr(PrefixSharingMixin, "_played_back", noted)
    # The reference is asked before it.
    grpo(PICK, str(model), tmp_path / "out", small_config(groups=4, steps=1, beta=0.1))
    assert learns == [True]


@pytest.mark.parametrize(
    ("more", "captured"),
    [
        ({}, True),
        ({"batch_size": 8}, False),
        ({"lora": Lora(rank=2)}, False),
        ({"gradient_checkpointing": True}, False),
    ],
)
def test_graphs_need_full_weights_and_a_single_batch(
    more: dict[str, Any], captured: bool, model: Path, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    alike: list[bool] = []

    def noted(trainer: Any, core: Any) -> None:
        alike.append(supports_cuda_graphs(trainer, trainer.pace.world))

    monkeypatch.setattr(PrefixSharingMixin, "_played_back", noted)
    settings = small_config(**{"groups": 4, "group_size": 4, "steps": 1, "batch_size": 16, **more})
    grpo(PICK, str(model), tmp_path / "out", settings)
    assert alike == [captured]
