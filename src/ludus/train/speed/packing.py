"""A batch as one strip of tokens: its rows end to end, always of the same length.

Nothing is padded row by row. What is missing at the end is filled with rows of their own that bear
no loss, so that every batch has one shape and a GPU can play back the same work for each.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ludus.train.data.tokenization import IGNORE_INDEX

LENGTH_MULTIPLE = 128
"""Lengths are multiples of it, as the kernels like them."""


@dataclass(frozen=True, slots=True)
class PackingCollator:
    """Lays out batches; a collator of the trainer's."""

    length: int
    """How long a strip is."""
    max_rows: int
    """How many rows there can be in it, those that only fill it up among them."""
    longest_row: int
    pad_token_id: int

    @classmethod
    def for_lengths(cls, lengths: Any, batch_size: int, pad_token_id: int) -> PackingCollator:
        """One into which any `batch` of these rows goes."""
        import numpy as np

        sizes = np.sort(np.asarray(lengths))[::-1]
        most = int(sizes[:batch_size].sum())
        longest = int(sizes[0])
        tokens = -(-most // LENGTH_MULTIPLE) * LENGTH_MULTIPLE
        # Even a batch of one row, the last of an epoch, is filled up by rows of the longest kind.
        return cls(tokens, batch_size + -(-tokens // longest) + 1, longest, pad_token_id)

    def wasted_fraction(self, lengths: Any, batch_size: int) -> float:
        """The share of a strip that is only filled up, on average."""
        import numpy as np

        return float(1 - np.mean(lengths) * batch_size / self.length)

    def __call__(self, rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        import numpy as np
        import torch

        sizes = [len(row["input_ids"]) for row in rows]
        taken = sum(sizes)
        sizes += self._filler_lengths(self.length - taken)
        ids = np.full(self.length, self.pad_token_id, dtype=np.int64)
        labels = np.full(self.length, IGNORE_INDEX, dtype=np.int64)
        ids[:taken] = np.concatenate([row["input_ids"] for row in rows])
        labels[:taken] = np.concatenate([row["labels"] for row in rows])
        ends = np.cumsum(sizes)
        positions = np.arange(self.length) - np.repeat(ends - sizes, sizes)
        # Rows of no length at the end: the number of boundaries is part of the shape.
        bounds = np.full(self.max_rows + 1, self.length, dtype=np.int32)
        bounds[0], bounds[1 : len(ends) + 1] = 0, ends
        return {
            "input_ids": torch.from_numpy(ids)[None],
            "labels": torch.from_numpy(labels)[None],
            "position_ids": torch.from_numpy(positions)[None],
            "attention_mask": (torch.arange(self.length) < taken).long()[None],
            "cu_seq_lens_q": torch.from_numpy(bounds),
        }

    def _filler_lengths(self, missing: int) -> list[int]:
        whole, rest = divmod(missing, self.longest_row)
        return [self.longest_row] * whole + ([rest] if rest else [])
