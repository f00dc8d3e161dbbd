"""Loss masks: made from rendered conversations, measured, and checked in the trainer's first batch.

Labels follow PyTorch: a token that bears loss is its own label, every other one `IGNORE_INDEX`.

Truncation, packing, padding and collation come between the rows and the batch that a trainer
computes with, and most of it is TRL's code. So the first batch is split into its rows again, each
is looked up among the tokenized rows by its tokens, and the labels are compared.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ludus.errors import RunError
from ludus.policy.chat.rendering import RenderedConversation
from ludus.train.config import Method
from ludus.train.data.row_schema import TOKEN_COLUMNS

IGNORE_INDEX = -100
"""The label of tokens without loss, as in `torch.nn.CrossEntropyLoss`."""
TokensAndLabels = tuple[Any, Any]
"""Tokens and labels of one row, as arrays."""


def trim_after_loss(conversation: RenderedConversation) -> RenderedConversation:
    """Drop the tokens after the last one with loss, such as the environment's last message."""
    if not conversation.spans:
        return conversation
    return conversation.truncate(conversation.spans[-1][1])


def apply_loss_mask(conversation: RenderedConversation) -> list[int]:
    """The labels of a conversation by its loss mask.

    The first token has no loss: nothing predicts it.
    """
    tokens = zip(conversation.ids, conversation.mask, strict=True)
    labels = [token if has_loss else IGNORE_INDEX for token, has_loss in tokens]
    return [IGNORE_INDEX, *labels[1:]]


def to_completion_mask(labels: Any) -> Any:
    """Labels as the 0/1 mask that TRL's `DPOTrainer` takes."""
    return (labels != IGNORE_INDEX).long()


def find_loss_starts(labels: Any) -> Any:
    """For each row of a `pyarrow.ListArray` of labels, its first position with loss, or -1."""
    import numpy as np

    offsets = labels.offsets.to_numpy().astype(np.int64)
    starts, ends = offsets[:-1], offsets[1:]
    with_loss = np.flatnonzero(labels.values.to_numpy() != IGNORE_INDEX)
    first = np.append(with_loss, np.iinfo(np.int64).max)[np.searchsorted(with_loss, starts)]
    return np.where(first < ends, first - starts, -1)


@dataclass(frozen=True, slots=True)
class LossMaskIndex:
    """The labels of all rows, found by the rows' tokens."""

    keys: Any
    """The hashes of the rows, sorted."""
    rows: Any
    """For each key, the chunk and the position of its row."""
    chunks: Sequence[tuple[Any, Any, Any]]
    """The offsets of rows, and their concatenated tokens and labels."""

    @classmethod
    def build(cls, dataset: Any, method: Method) -> LossMaskIndex:
        import numpy as np

        chunks = []
        for columns in TOKEN_COLUMNS[method]:
            # Views of the memory-mapped file.
            for ids, labels in zip(*(dataset.data.column(c).chunks for c in columns), strict=True):
                offsets = ids.offsets.to_numpy().astype(np.int64)
                flat_ids, flat_labels = ids.flatten().to_numpy(), labels.flatten().to_numpy()
                chunks.append((offsets - offsets[0], flat_ids, flat_labels))
        keys = [cls._hash_rows(offsets[:-1], np.diff(offsets), ids) for offsets, ids, _ in chunks]
        rows = [
            np.stack([np.full(len(some), chunk), np.arange(len(some))], axis=1)
            for chunk, some in enumerate(keys)
        ]
        flat = np.concatenate(keys)
        order = np.argsort(flat, kind="stable")
        return cls(flat[order], np.concatenate(rows)[order], chunks)

    def find_labels(self, tokens: Any) -> Iterator[Any]:
        """The labels of every row with exactly these tokens."""
        import numpy as np

        (key,) = self._hash_rows(np.array([0]), np.array([len(tokens)]), tokens)
        first = np.searchsorted(self.keys, key, "left")
        last = np.searchsorted(self.keys, key, "right")
        for chunk, row in self.rows[first:last]:
            offsets, ids, labels = self.chunks[chunk]
            span = slice(offsets[row], offsets[row + 1])
            if np.array_equal(ids[span], tokens):
                yield labels[span]

    @staticmethod
    def _hash_rows(starts: Any, sizes: Any, tokens: Any) -> Any:
        """A hash of each row's length and of eight tokens spread over it."""
        import numpy as np

        keys = sizes.astype(np.int64)
        for eighth in range(1, 9):
            keys = keys * 1_000_003 + tokens[starts + (sizes - 1) * eighth // 8].astype(np.int64)
        return keys


def check_loss_mask(batch: Mapping[str, Any], index: LossMaskIndex) -> int:
    """Raise unless every row of the batch has the labels it was given; count tokens with loss."""
    import numpy as np

    tokens_with_loss = 0
    for tokens, labels in _iter_tokens_and_labels(batch):
        known = list(index.find_labels(tokens))
        if not known:
            raise RunError(
                f"The trainer's batch holds a row of {len(tokens)} tokens that is not in the data: "
                "this version of TRL changes rows. Install the version that Ludus requires."
            )
        count = int((labels != IGNORE_INDEX).sum())
        if not any(np.array_equal(labels, each) for each in known):
            raise RunError(
                f"The trainer's batch has its loss on {count} of the {len(tokens)} tokens of a row "
                f"instead of the {int((known[0] != IGNORE_INDEX).sum())} of its loss mask. Install "
                "the version of TRL that Ludus requires."
            )
        tokens_with_loss += count
    return tokens_with_loss


def _iter_tokens_and_labels(batch: Mapping[str, Any]) -> Iterator[TokensAndLabels]:
    """Tokens and labels of each row of a padded or packed batch, without padding."""
    import numpy as np

    ids = batch["input_ids"].cpu().numpy()
    if "labels" in batch:
        labels = batch["labels"].cpu().numpy()
    else:
        labels = np.where(batch["completion_mask"].cpu().numpy() == 1, ids, IGNORE_INDEX)
    present = np.ones(ids.shape, bool)
    if "attention_mask" in batch:
        present = batch["attention_mask"].cpu().numpy() == 1
    if (labels[~present] != IGNORE_INDEX).any():
        raise RunError("The trainer's batch has loss on its padding.")
    if "position_ids" not in batch:
        for row, mask in enumerate(present):
            yield ids[row][mask], labels[row][mask]
        return
    # Packed: a row starts wherever the positions start anew.
    ids, labels = ids[present], labels[present]
    starts = np.flatnonzero(batch["position_ids"].cpu().numpy()[present] == 0)
    for start, end in zip(starts, [*starts[1:], len(ids)], strict=True):
        yield ids[start:end], labels[start:end]
