"""Collators: tokenized rows padded into the batches of TRL's trainers.

TRL collates SFT rows of text itself; `ludus.train.speed.packing` concatenates them instead.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ludus.policy.vision.processor import VisionProcessor
from ludus.policy.vision.training_images import image_inputs
from ludus.train.data.loss_mask import IGNORE_INDEX, to_completion_mask
from ludus.train.data.row_schema import IMAGE_COLUMNS, TOKEN_COLUMNS

REFERENCE_COLUMNS = ("ref_chosen_logps", "ref_rejected_logps")
"""Reference log-probabilities of each side, where TRL computed them beforehand."""


class ImageCollator:
    """Pads SFT rows with images into a batch."""

    def __init__(self, pad_token_id: int, vision: VisionProcessor) -> None:
        self.pad_token_id, self.vision = pad_token_id, vision

    def __call__(self, rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        ids = [row["input_ids"] for row in rows]
        width = max(map(len, ids))
        batch = {
            "input_ids": _pad_rows(ids, self.pad_token_id, width),
            "attention_mask": _pad_rows([[1] * len(each) for each in ids], 0, width),
            "labels": _pad_rows([row["labels"] for row in rows], IGNORE_INDEX, width),
        }
        (column,) = IMAGE_COLUMNS["sft"]
        urls = [url for row in rows for url in row[column]]
        return batch | image_inputs(self.vision, urls, batch["input_ids"])


class PairCollator:
    """Pads pairs into a batch: all chosen sides, then all rejected ones, with their loss masks."""

    def __init__(self, pad_token_id: int, vision: VisionProcessor | None = None) -> None:
        self.pad_token_id, self.vision = pad_token_id, vision

    def __call__(self, rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        import torch

        ids = [row[column] for column, _ in TOKEN_COLUMNS["dpo"] for row in rows]
        labels = [row[column] for _, column in TOKEN_COLUMNS["dpo"] for row in rows]
        width = max(map(len, ids))
        batch = {
            "input_ids": _pad_rows(ids, self.pad_token_id, width),
            "attention_mask": _pad_rows([[1] * len(each) for each in ids], 0, width),
            "completion_mask": to_completion_mask(_pad_rows(labels, IGNORE_INDEX, width)),
        }
        if self.vision is not None:
            urls = [url for column in IMAGE_COLUMNS["dpo"] for row in rows for url in row[column]]
            batch |= image_inputs(self.vision, urls, batch["input_ids"])
        columns = [name for name in REFERENCE_COLUMNS if name in rows[0]]
        return batch | {name: torch.tensor([row[name] for row in rows]) for name in columns}


def _pad_rows(rows: Sequence[Sequence[int]], filler: int, width: int) -> Any:
    """Pad the rows of a batch on the right, as a collator does, into one tensor."""
    import torch

    return torch.tensor([[*row, *[filler] * (width - len(row))] for row in rows])
