"""The members of a group begin with the same prompt, and it is read once for all of them.

A group is laid out as a tree: its prompt is the trunk, and each member's completion is a branch
that sees the trunk and itself. What a model says of a token is the same as in a row of its own, and
so are the gradients; but of eight rows with a long prompt and a short reply, seven prompts are
saved. A branch begins with the prompt's last token, which is what its first one is foretold from.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from ludus.train.data.loss_mask import IGNORE_INDEX

_ID, _POSITION, _LABEL, _TREE, _BRANCH = range(5)
_PADDING = (0, 0, IGNORE_INDEX, -1, -1)
LANE_LENGTH_MULTIPLE = 16
"""Lanes are as long as a multiple of it, which kernels for masked attention want."""


@dataclass(frozen=True, slots=True)
class PrefixTrees:
    """Rows as trees, which share lanes of one length; all but `spots` is by lane and place."""

    input_ids: Any
    position_ids: Any
    """Where a token stands in its row."""
    labels: Any
    """What comes next, where it is to be scored."""
    tree_ids: Any
    branch_ids: Any
    """Of which tree of its lane a token is, and of which branch; 0 is the trunk. -1 fills up."""
    token_index: Any
    """For each row and token of its completion, where it is foretold; -1 for its padding."""

    def attention_mask(self) -> Any:
        """By lane, head, token, and other token: whether it is seen."""
        import torch

        same = self.tree_ids[:, :, None] == self.tree_ids[:, None, :]
        below = (self.branch_ids == 0)[:, None, :]
        seen = same & (below | (self.branch_ids[:, :, None] == self.branch_ids[:, None, :]))
        # What fills up sees something too: of nothing, a softmax makes what is not a number.
        return torch.tril(seen).unsqueeze(1)

    def pad_to(self, lanes: int, length: int) -> PrefixTrees:
        """The same in so many lanes of such a length, which are no fewer and no shorter."""
        from torch.nn.functional import pad

        had, long = self.input_ids.shape

        def filled(part: Any, value: int) -> Any:
            return pad(part, (0, length - long, 0, lanes - had), value=value)

        spots = self.token_index // long * length + self.token_index % long
        return PrefixTrees(
            input_ids=filled(self.input_ids, _PADDING[_ID]),
            position_ids=filled(self.position_ids, _PADDING[_POSITION]),
            labels=filled(self.labels, _PADDING[_LABEL]),
            tree_ids=filled(self.tree_ids, _PADDING[_TREE]),
            branch_ids=filled(self.branch_ids, _PADDING[_BRANCH]),
            token_index=spots.where(self.token_index >= 0, self.token_index),
        )

    def gather_rows(self, said: Any) -> Any:
        """What was said of each place in the lanes, for the tokens of each row's completion."""
        found = said.flatten()[self.token_index.clamp(min=0)]
        return found.masked_fill(self.token_index < 0, 0.0)


class _Row(NamedTuple):
    prompt: Any
    completion: Any


@dataclass(frozen=True, slots=True)
class _Tree:
    prompt: Any
    members: list[int]
    """Numbers of rows."""
    size: int


def build_trees(ids: Any, mask: Any, keep: int, *, width: int) -> PrefixTrees | None:
    """Rows of prompt and completion as trees; None where the work would not become less.

    Args:
        ids: Rows of tokens, with prompts padded on the left, and completions on the right.
        mask: 1 where a token is none of that padding.
        keep: How many columns the completions have.
        width: Of the model: how many numbers it has for a token.
    """
    rows = _split_rows(ids.cpu().numpy(), mask.cpu().numpy(), keep)
    trees = _group_rows(rows)
    if len(trees) == len(rows) or not all(len(tree.prompt) for tree in trees):
        return None
    longest = -(-max(tree.size for tree in trees) // LANE_LENGTH_MULTIPLE) * LANE_LENGTH_MULTIPLE
    lanes = _pack_lanes(trees, longest)
    if _estimate_cost(len(lanes), longest, width) >= _estimate_cost(len(rows), ids.shape[1], width):
        return None
    return _lay_out(rows, lanes, longest, keep, ids.device)


def _split_rows(ids: Any, mask: Any, keep: int) -> list[_Row]:
    start = ids.shape[1] - keep
    asked, said = start - mask[:, :start].sum(1), start + mask[:, start:].sum(1)
    return [
        _Row(row[before:start], row[start:after])
        for row, before, after in zip(ids, asked, said, strict=True)
    ]


def _group_rows(rows: Sequence[_Row]) -> list[_Tree]:
    members: dict[bytes, list[int]] = {}
    for number, row in enumerate(rows):
        members.setdefault(row.prompt.tobytes(), []).append(number)
    trees = []
    for of in members.values():
        prompt = rows[of[0]].prompt
        size = len(prompt) - 1 + sum(1 + len(rows[row].completion) for row in of)
        trees.append(_Tree(prompt, of, size))
    return trees


def _pack_lanes(trees: Sequence[_Tree], longest: int) -> list[list[_Tree]]:
    """Which trees share a lane: the largest first, each where there is room."""
    lanes: list[list[_Tree]] = []
    room: list[int] = []
    for tree in sorted(trees, key=lambda tree: -tree.size):
        lane = next((lane for lane, left in enumerate(room) if left >= tree.size), len(lanes))
        if lane == len(lanes):
            lanes.append([])
            room.append(longest)
        lanes[lane].append(tree)
        room[lane] -= tree.size
    return lanes


def _estimate_cost(lanes: int, length: int, width: int) -> int:
    """Roughly: a token costs what it costs to see six times as many others as the model is wide."""
    return lanes * length * (6 * width + length)


def _lay_out(
    rows: Sequence[_Row], lanes: Sequence[Sequence[_Tree]], longest: int, keep: int, device: Any
) -> PrefixTrees:
    import numpy as np
    import torch

    parts = np.stack([np.full((len(lanes), longest), value) for value in _PADDING])
    spots = np.full((len(rows), keep), -1)
    for number, lane in enumerate(lanes):
        at = 0
        for which, tree in enumerate(lane):
            trunk = len(tree.prompt) - 1
            _write_tokens(parts[:, number, at : at + trunk], tree.prompt[:-1], 0, which, 0)
            at += trunk
            for branch, row in enumerate(tree.members, 1):
                said = rows[row].completion
                piece = parts[:, number, at : at + 1 + len(said)]
                _write_tokens(piece, np.append(tree.prompt[-1], said), trunk, which, branch)
                piece[_LABEL, :-1] = said
                spots[row, : len(said)] = number * longest + at + np.arange(len(said))
                at += 1 + len(said)
    ids, positions, labels, tree_of, branch_of = torch.from_numpy(parts).to(device)
    where = torch.from_numpy(spots).to(device)
    return PrefixTrees(ids, positions, labels, tree_of, branch_of, where)


def _write_tokens(piece: Any, tokens: Any, first: int, tree: int, branch: int) -> None:
    piece[_ID], piece[_TREE], piece[_BRANCH] = tokens, tree, branch
    piece[_POSITION] = range(first, first + len(tokens))
