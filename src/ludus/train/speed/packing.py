"""Packing of a batch into one sequence of fixed length.

Rows are concatenated without padding. The rest of the sequence is filled with rows of padding
without loss, so that all batches have the same shape and one CUDA graph serves them all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ludus.train.data.loss_mask import IGNORE_INDEX

LENGTH_MULTIPLE = 128
"""The length of a sequence is a multiple of it, for efficient kernels."""


@dataclass(frozen=True, slots=True)
class PackingCollator:
    """A data collator that packs a batch into one sequence."""

    length: int
    """Tokens of a sequence."""
    max_rows: int
    """The largest number of rows in a sequence, including those of padding."""
    longest_row: int
    pad_token_id: int

    @classmethod
    def for_lengths(cls, lengths: Any, batch_size: int, pad_token_id: int) -> PackingCollator:
        """A collator whose sequences hold any `batch_size` of rows with these lengths."""
        import numpy as np

        descending = np.sort(np.asarray(lengths))[::-1]
        longest_row, largest_batch = int(descending[0]), int(descending[:batch_size].sum())
        length = -(-largest_batch // LENGTH_MULTIPLE) * LENGTH_MULTIPLE
        # A batch of a single row, at the end of an epoch, is filled with the most rows of padding.
        max_rows = batch_size + -(-length // longest_row) + 1
        return cls(length, max_rows, longest_row, pad_token_id)

    def wasted_fraction(self, lengths: Any, batch_size: int) -> float:
        """The average share of padding in a sequence."""
        import numpy as np

        return float(1 - np.mean(lengths) * batch_size / self.length)

    def __call__(self, rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        import numpy as np
        import torch

        sizes = [len(row["input_ids"]) for row in rows]
        tokens = sum(sizes)
        # Rows of padding, none longer than the longest row.
        whole, rest = divmod(self.length - tokens, self.longest_row)
        sizes += [self.longest_row] * whole + [rest] * bool(rest)
        ids = np.full(self.length, self.pad_token_id, dtype=np.int64)
        labels = np.full(self.length, IGNORE_INDEX, dtype=np.int64)
        ids[:tokens] = np.concatenate([row["input_ids"] for row in rows])
        labels[:tokens] = np.concatenate([row["labels"] for row in rows])
        ends = np.cumsum(sizes)
        positions = np.arange(self.length) - np.repeat(ends - sizes, sizes)
        # Boundaries of empty rows at the end: their number is part of the shape.
        cu_seq_lens = np.full(self.max_rows + 1, self.length, dtype=np.int32)
        cu_seq_lens[0], cu_seq_lens[1 : len(ends) + 1] = 0, ends
        return {
            "input_ids": torch.from_numpy(ids)[None],
            "labels": torch.from_numpy(labels)[None],
            "position_ids": torch.from_numpy(positions)[None],
            "attention_mask": (torch.arange(self.length) < tokens).long()[None],
            "cu_seq_lens_q": torch.from_numpy(cu_seq_lens),
        }


def row_lengths(rows: Any) -> Any:
    """The number of tokens of each row of a data set, as an array; see `for_lengths`."""
    import pyarrow.compute as pc

    return pc.list_value_length(rows.data.column("input_ids")).to_numpy()
