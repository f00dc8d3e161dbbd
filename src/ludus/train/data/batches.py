"""Batches of tokenized rows: padded, or packed into one sequence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ludus.policy.vision.processor import VisionProcessor
from ludus.policy.vision.training_images import image_inputs
from ludus.train.data.rows import IGNORE_INDEX, IMAGE_COLUMNS, TOKEN_COLUMNS

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

    Array = np.ndarray[Any, Any]

Row = Mapping[str, Any]
Batch = Mapping[str, "Tensor"]
REFERENCE_COLUMNS = ("ref_chosen_logps", "ref_rejected_logps")
"""Reference log-probabilities of each side, if TRL computed them beforehand."""
LENGTH_MULTIPLE = 128
"""The length of a packed sequence is a multiple of it, for efficient kernels."""


class ImageCollator:
    """Pads SFT rows with images into a batch."""

    def __init__(self, pad_token_id: int, vision: VisionProcessor) -> None:
        self.pad_token_id, self.vision = pad_token_id, vision

    def __call__(self, rows: Sequence[Row]) -> Batch:
        batch = _pad([row["input_ids"] for row in rows], self.pad_token_id)
        batch["labels"] = _pad([row["labels"] for row in rows], IGNORE_INDEX)["input_ids"]
        (column,) = IMAGE_COLUMNS["sft"]
        urls = [url for row in rows for url in row[column]]
        return batch | image_inputs(self.vision, self.vision.process_urls(urls), batch["input_ids"])


class PairCollator:
    """Pads pairs into a batch: all chosen sides, then all rejected ones, with their loss masks."""

    def __init__(self, pad_token_id: int, vision: VisionProcessor | None = None) -> None:
        self.pad_token_id, self.vision = pad_token_id, vision

    def __call__(self, rows: Sequence[Row]) -> Batch:
        import torch

        sides = TOKEN_COLUMNS["dpo"]
        batch = _pad([row[ids] for ids, _ in sides for row in rows], self.pad_token_id)
        labels = _pad([row[labels] for _, labels in sides for row in rows], IGNORE_INDEX)
        # The 0/1 mask that TRL's `DPOTrainer` takes.
        batch["completion_mask"] = (labels["input_ids"] != IGNORE_INDEX).long()
        if self.vision is not None:
            urls = [url for column in IMAGE_COLUMNS["dpo"] for row in rows for url in row[column]]
            batch |= image_inputs(self.vision, self.vision.process_urls(urls), batch["input_ids"])
        columns = [name for name in REFERENCE_COLUMNS if name in rows[0]]
        return batch | {name: torch.tensor([row[name] for row in rows]) for name in columns}


def _pad(rows: Sequence[Sequence[int]], filler: int) -> dict[str, Tensor]:
    """The rows of a batch, padded on the right."""
    import torch

    width = max(map(len, rows))
    ids = [[*row, *[filler] * (width - len(row))] for row in rows]
    mask = [[1] * len(row) + [0] * (width - len(row)) for row in rows]
    return {"input_ids": torch.tensor(ids), "attention_mask": torch.tensor(mask)}


@dataclass(frozen=True, slots=True)
class PackingCollator:
    """Packs a batch into one sequence of fixed length.

    Rows are concatenated without padding. The rest of the sequence is filled with rows of padding
    without loss, so that all batches have the same shape and one CUDA graph serves them all.
    """

    length: int
    """Tokens of a sequence."""
    max_rows: int
    """The largest number of rows in a sequence, including padding rows."""
    longest_row: int
    pad_token_id: int

    @classmethod
    def for_lengths(
        cls, lengths: Sequence[int] | Array, batch_size: int, pad_token_id: int
    ) -> PackingCollator:
        """A collator whose sequences hold any `batch_size` of rows with these lengths."""
        import numpy as np

        descending = np.sort(np.asarray(lengths))[::-1]
        longest_row, largest_batch = int(descending[0]), int(descending[:batch_size].sum())
        length = -(-largest_batch // LENGTH_MULTIPLE) * LENGTH_MULTIPLE
        # A batch of a single row, at the end of an epoch, is filled with the most rows of padding.
        max_rows = batch_size + -(-length // longest_row) + 1
        return cls(length, max_rows, longest_row, pad_token_id)

    def wasted_fraction(self, lengths: Sequence[int] | Array, batch_size: int) -> float:
        """The average share of padding in a batch."""
        import numpy as np

        return float(1 - np.mean(lengths) * batch_size / self.length)

    def __call__(self, rows: Sequence[Row]) -> Batch:
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
