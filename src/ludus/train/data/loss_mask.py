"""Whether a batch bears its loss where it should: looked up, not assumed.

Between the rows as they were marked and the batch that a trainer computes with lie truncation,
packing, padding and a collator, all somebody else's. So the very first batch is taken apart into
its rows again, each is found among the marked ones by its tokens, and the labels are compared.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ludus.errors import RunError
from ludus.train.config import Method
from ludus.train.data.tokenization import IGNORE_INDEX, TOKEN_COLUMNS

TokensAndLabels = tuple[Any, Any]
"""Tokens and labels of one row, as arrays."""


@dataclass(frozen=True, slots=True)
class LossMaskIndex:
    """The rows as they were marked, found by a few of their tokens."""

    keys: Any
    """Sorted."""
    rows: Any
    """For each key, the part that its row is in, and where it stands there."""
    chunks: Sequence[tuple[Any, Any, Any]]
    """Where rows begin, their tokens, and their labels, one behind the other."""

    @classmethod
    def build(cls, dataset: Any, method: Method) -> LossMaskIndex:
        import numpy as np

        parts = list(_column_chunks(dataset.data, method))
        keys = [_hash_rows(offsets[:-1], np.diff(offsets), ids) for offsets, ids, _ in parts]
        places = [
            np.stack([np.full(len(some), part), np.arange(len(some))], axis=1)
            for part, some in enumerate(keys)
        ]
        flat = np.concatenate(keys)
        order = np.argsort(flat, kind="stable")
        return cls(flat[order], np.concatenate(places)[order], parts)

    def find_labels(self, tokens: Any) -> Iterator[Any]:
        """The labels of every row that has just these tokens."""
        import numpy as np

        key = _hash_rows(np.array([0]), np.array([len(tokens)]), tokens)[0]
        first, last = (
            np.searchsorted(self.keys, key, "left"),
            np.searchsorted(self.keys, key, "right"),
        )
        for part, row in self.rows[first:last]:
            offsets, ids, labels = self.chunks[part]
            here = slice(offsets[row], offsets[row + 1])
            if np.array_equal(ids[here], tokens):
                yield labels[here]


def _column_chunks(table: Any, method: Method) -> Iterator[tuple[Any, Any, Any]]:
    """The columns as arrays over the same memory, which is the disk's."""
    import numpy as np

    for ids, labels in TOKEN_COLUMNS[method]:
        both = zip(table.column(ids).chunks, table.column(labels).chunks, strict=True)
        for some, theirs in both:
            offsets = some.offsets.to_numpy().astype(np.int64)
            values, marks = some.flatten().to_numpy(), theirs.flatten().to_numpy()
            yield offsets - offsets[0], values, marks


def _hash_rows(starts: Any, sizes: Any, values: Any) -> Any:
    """A number for each row, made of its length and of tokens from all over it."""
    import numpy as np

    keys = sizes.astype(np.int64)
    for eighth in range(1, 9):
        keys = keys * 1_000_003 + values[starts + (sizes - 1) * eighth // 8].astype(np.int64)
    return keys


def check_loss_mask(batch: Mapping[str, Any], index: LossMaskIndex) -> int:
    """Raise unless every row of the batch bears its loss where it was marked; count the tokens."""
    import numpy as np

    bearing = 0
    for tokens, labels in _split_batch(batch):
        known = list(index.find_labels(tokens))
        if not known:
            raise RunError(
                f"The trainer's batch holds a row of {len(tokens)} tokens that no row of the data "
                "has. This version of TRL changes rows; use the one that Ludus names."
            )
        if not any(np.array_equal(labels, each) for each in known):
            raise RunError(
                f"The trainer's batch bears its loss on other tokens than were marked: on "
                f"{int((labels != IGNORE_INDEX).sum())} of {len(tokens)} instead of "
                f"{int((known[0] != IGNORE_INDEX).sum())}. Use the version of TRL that Ludus names."
            )
        bearing += int((labels != IGNORE_INDEX).sum())
    return bearing


def _split_batch(batch: Mapping[str, Any]) -> Iterator[TokensAndLabels]:
    """The batch taken apart into its rows again."""
    import numpy as np

    ids = batch["input_ids"].cpu().numpy()
    labels = _batch_labels(batch, ids)
    present = np.ones(ids.shape, bool)
    if "attention_mask" in batch:
        present = batch["attention_mask"].cpu().numpy() == 1
    if (labels[~present] != IGNORE_INDEX).any():
        raise RunError("The trainer's batch bears loss on its padding.")
    if "position_ids" in batch:
        positions = batch["position_ids"].cpu().numpy()
        yield from _split_packed_rows(ids[present], labels[present], positions[present])
        return
    for row, there in enumerate(present):
        yield ids[row][there], labels[row][there]


def _batch_labels(batch: Mapping[str, Any], ids: Any) -> Any:
    import numpy as np

    if "labels" in batch:
        return batch["labels"].cpu().numpy()
    return np.where(batch["completion_mask"].cpu().numpy() == 1, ids, IGNORE_INDEX)


def _split_packed_rows(ids: Any, labels: Any, positions: Any) -> Iterator[TokensAndLabels]:
    """Rows that stand one behind the other: each begins where the positions begin anew."""
    import numpy as np

    starts = np.flatnonzero(positions == 0)
    for start, end in zip(starts, [*starts[1:], len(ids)], strict=True):
        yield ids[start:end], labels[start:end]
