"""Prefix sharing: the rows of a group as a tree, so that their common prompt is computed once.

A tree's trunk is the prompt of a group; each completion is a branch that attends to the trunk and
to itself. Log-probabilities and gradients are those of separate rows, but of eight rows with a
long prompt and short replies, seven prompts are saved. Every branch starts with a copy of the
prompt's last token, because the branch's first token is predicted from it.

Trees are packed into lanes: the rows of the batch that the model is given.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from ludus.train.data.rows import IGNORE_INDEX

_ID, _POSITION, _LABEL, _TREE, _BRANCH = range(5)
_PADDING = (0, 0, IGNORE_INDEX, -1, -1)
LANE_LENGTH_MULTIPLE = 16
"""Lane lengths are multiples of this: masked attention kernels need aligned lengths."""


@dataclass(frozen=True, slots=True)
class PrefixTrees:
    """Packed trees. All tensors but `token_index` have the shape (lanes, length)."""

    input_ids: Any
    position_ids: Any
    """Positions within the original row."""
    labels: Any
    """The next token, where it is scored; `IGNORE_INDEX` elsewhere."""
    tree_ids: Any
    """Index of the tree within its lane; -1 for padding."""
    branch_ids: Any
    """0 for the trunk, from 1 for branches; -1 for padding."""
    token_index: Any
    """Shape (rows, completion length): index into the flattened lanes of the position that predicts
    this token; -1 where the completion is padded."""

    def attention_mask(self) -> Any:
        """Boolean mask of shape (lanes, 1, length, length): query positions by key positions."""
        import torch

        same_tree = self.tree_ids[:, :, None] == self.tree_ids[:, None, :]
        same_branch = self.branch_ids[:, :, None] == self.branch_ids[:, None, :]
        in_trunk = (self.branch_ids == 0)[:, None, :]
        # Padding attends to padding: a softmax over no keys would be NaN.
        return torch.tril(same_tree & (in_trunk | same_branch)).unsqueeze(1)

    def pad_to(self, lanes: int, length: int) -> PrefixTrees:
        """Pad to a shape that is at least as large in both dimensions."""
        from torch.nn.functional import pad

        old_lanes, old_length = self.input_ids.shape

        def padded(values: Any, part: int) -> Any:
            shape = (0, length - old_length, 0, lanes - old_lanes)
            return pad(values, shape, value=_PADDING[part])

        index = self.token_index // old_length * length + self.token_index % old_length
        return PrefixTrees(
            input_ids=padded(self.input_ids, _ID),
            position_ids=padded(self.position_ids, _POSITION),
            labels=padded(self.labels, _LABEL),
            tree_ids=padded(self.tree_ids, _TREE),
            branch_ids=padded(self.branch_ids, _BRANCH),
            token_index=index.where(self.token_index >= 0, self.token_index),
        )

    def gather_rows(self, values: Any) -> Any:
        """Values of shape (lanes, length) as (rows, completion length), 0 for padding."""
        rows = values.flatten()[self.token_index.clamp(min=0)]
        return rows.masked_fill(self.token_index < 0, 0.0)


class _Row(NamedTuple):
    prompt: Any
    completion: Any


@dataclass(frozen=True, slots=True)
class _Tree:
    prompt: Any
    members: list[int]
    """Row indices."""
    size: int


def build_trees(ids: Any, mask: Any, keep: int, *, width: int) -> PrefixTrees | None:
    """Turn rows of prompt and completion into trees; None if that would not save work.

    Args:
        ids: Token ids, with prompts padded on the left and completions on the right.
        mask: 1 for tokens, 0 for padding.
        keep: Number of completion columns.
        width: The model's hidden size.
    """
    split = ids.shape[1] - keep
    starts = (split - mask[:, :split].sum(1)).tolist()
    ends = (split + mask[:, split:].sum(1)).tolist()
    rows = [
        _Row(row[start:split], row[split:end])
        for row, start, end in zip(ids.cpu().numpy(), starts, ends, strict=True)
    ]
    groups: dict[bytes, list[int]] = {}
    for number, row in enumerate(rows):
        groups.setdefault(row.prompt.tobytes(), []).append(number)
    trees = []
    for members in groups.values():
        prompt = rows[members[0]].prompt
        size = len(prompt) - 1 + sum(1 + len(rows[number].completion) for number in members)
        trees.append(_Tree(prompt, members, size))
    if len(trees) == len(rows) or not all(len(tree.prompt) for tree in trees):
        return None
    longest = max(tree.size for tree in trees)
    length = -(-longest // LANE_LENGTH_MULTIPLE) * LANE_LENGTH_MULTIPLE
    lanes = _pack_lanes(trees, length)
    cost_of_rows = _estimate_cost(len(rows), ids.shape[1], width)
    if _estimate_cost(len(lanes), length, width) >= cost_of_rows:
        return None
    return _lay_out(rows, lanes, length, keep, ids.device)


def _pack_lanes(trees: Sequence[_Tree], length: int) -> list[list[_Tree]]:
    """First-fit decreasing bin packing of trees into lanes."""
    lanes: list[list[_Tree]] = []
    free: list[int] = []
    for tree in sorted(trees, key=lambda tree: -tree.size):
        lane = next((lane for lane, room in enumerate(free) if room >= tree.size), len(lanes))
        if lane == len(lanes):
            lanes.append([])
            free.append(length)
        lanes[lane].append(tree)
        free[lane] -= tree.size
    return lanes


def _estimate_cost(lanes: int, length: int, width: int) -> int:
    """Relative cost of a forward pass: a token's linear layers cost about as much as its attention
    to 6 x `width` other tokens."""
    return lanes * length * (6 * width + length)


def _lay_out(
    rows: Sequence[_Row], lanes: Sequence[Sequence[_Tree]], length: int, keep: int, device: Any
) -> PrefixTrees:
    import numpy as np
    import torch

    parts = np.stack([np.full((len(lanes), length), value) for value in _PADDING])
    index = np.full((len(rows), keep), -1)
    for number, lane in enumerate(lanes):
        at = 0
        for tree_id, tree in enumerate(lane):
            trunk = len(tree.prompt) - 1
            _write_tokens(parts[:, number, at : at + trunk], tree.prompt[:-1], 0, tree_id, 0)
            at += trunk
            for branch_id, row in enumerate(tree.members, 1):
                completion = rows[row].completion
                piece = parts[:, number, at : at + 1 + len(completion)]
                tokens = np.append(tree.prompt[-1], completion)
                _write_tokens(piece, tokens, trunk, tree_id, branch_id)
                piece[_LABEL, :-1] = completion
                index[row, : len(completion)] = number * length + at + np.arange(len(completion))
                at += 1 + len(completion)
    input_ids, position_ids, labels, tree_ids, branch_ids = torch.from_numpy(parts).to(device)
    token_index = torch.from_numpy(index).to(device)
    return PrefixTrees(input_ids, position_ids, labels, tree_ids, branch_ids, token_index)


def _write_tokens(piece: Any, tokens: Any, position: int, tree_id: int, branch_id: int) -> None:
    piece[_ID], piece[_TREE], piece[_BRANCH] = tokens, tree_id, branch_id
    piece[_POSITION] = range(position, position + len(tokens))
