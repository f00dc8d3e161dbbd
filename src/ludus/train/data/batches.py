"""Batches of tokenized rows: padded, or packed into one sequence; and a check of their loss masks.

Truncation, packing, padding and collation come between the rows and the batch that a trainer
computes with, and most of it is TRL's code. So the first batch is split into its rows again, each
is looked up among the tokenized rows by its tokens, and the labels are compared.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ludus.errors import RunError
from ludus.policy.vision.processor import VisionProcessor
from ludus.policy.vision.training_images import image_inputs
from ludus.train.config import Method
from ludus.train.data.rows import IGNORE_INDEX, IMAGE_COLUMNS, TOKEN_COLUMNS

if TYPE_CHECKING:
    import numpy as np
    from datasets import Dataset
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


def check_loss_mask(batch: Batch, dataset: Dataset, method: Method) -> int:
    """Raise unless a batch's rows have the labels they were given; count tokens with loss."""
    import numpy as np

    tokens_with_loss = 0
    for tokens, labels in _split_batch(batch):
        expected = list(_find_labels(dataset, method, tokens))
        if not expected:
            raise RunError(
                f"The trainer's batch holds a row of {len(tokens)} tokens that is not in the data: "
                "this version of TRL changes rows. Install the version that Ludus requires."
            )
        count = int((labels != IGNORE_INDEX).sum())
        if not any(np.array_equal(labels, each) for each in expected):
            raise RunError(
                f"The trainer's batch has its loss on {count} of the {len(tokens)} tokens of a row "
                f"instead of the {int((expected[0] != IGNORE_INDEX).sum())} of its loss mask. "
                "Install the version of TRL that Ludus requires."
            )
        tokens_with_loss += count
    return tokens_with_loss


def _find_labels(dataset: Dataset, method: Method, tokens: Array) -> Iterator[Array]:
    """The labels of every row with exactly these tokens."""
    import numpy as np

    size = len(tokens)
    for columns in TOKEN_COLUMNS[method]:
        # Views of the memory-mapped file. Some tokens are compared first, for all rows at once.
        for ids, labels in zip(*(dataset.data.column(c).chunks for c in columns), strict=True):
            offsets, flat = ids.offsets.to_numpy(), ids.values.to_numpy()
            rows = np.flatnonzero(np.diff(offsets) == size)
            for probe in range(0, size, -(-size // 8)):
                rows = rows[flat[offsets[rows] + probe] == tokens[probe]]
            for row in rows:
                if np.array_equal(flat[offsets[row] : offsets[row + 1]], tokens):
                    yield labels[int(row)].values.to_numpy()


def _split_batch(batch: Batch) -> Iterator[tuple[Array, Array]]:
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
