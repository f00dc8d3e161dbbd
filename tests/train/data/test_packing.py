"""Packing of a batch into one sequence of fixed length."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ludus.train.data.batches import (
    LENGTH_MULTIPLE,
    PackingCollator,
)
from ludus.train.data.rows import IGNORE_INDEX

SIZES = st.lists(st.integers(1, 300), min_size=1, max_size=12)


def row(size: int, first: int = 10) -> dict[str, Any]:
    ids = np.arange(first, first + size)
    return {"input_ids": ids, "labels": np.where(np.arange(size) < size // 2, IGNORE_INDEX, ids)}


def test_rows_are_concatenated_with_their_positions() -> None:
    collator = PackingCollator.for_lengths([3, 5], batch_size=2, pad_token_id=0)
    batch = collator([row(3), row(5, first=50)])
    assert batch["input_ids"][0, :9].tolist() == [10, 11, 12, 50, 51, 52, 53, 54, 0]
    assert batch["position_ids"][0, :9].tolist() == [0, 1, 2, 0, 1, 2, 3, 4, 0]
    assert batch["labels"][0, :9].tolist() == [-100, 11, 12, -100, -100, 52, 53, 54, -100]
    assert batch["attention_mask"].sum() == 8
    assert batch["cu_seq_lens_q"][:4].tolist() == [0, 3, 8, 13]


@settings(max_examples=100, deadline=None, derandomize=True)
@given(sizes=SIZES, batch_size=st.integers(1, 6))
def test_all_batches_have_the_same_shape(sizes: list[int], batch_size: int) -> None:
    collator = PackingCollator.for_lengths(sizes, batch_size, pad_token_id=0)
    longest_first = sorted(sizes, reverse=True)[:batch_size]
    shapes = set()
    for chosen in (longest_first, sizes[:batch_size], sizes[-1:]):
        batch = collator([row(size) for size in chosen])
        shapes.add(tuple((name, tuple(value.shape)) for name, value in batch.items()))
        cu_seq_lens = batch["cu_seq_lens_q"].numpy()
        assert (
            cu_seq_lens[0] == 0
            and cu_seq_lens[-1] == collator.length
            and (np.diff(cu_seq_lens) >= 0).all()
        )
        assert np.diff(cu_seq_lens).max() <= collator.longest_row
        assert int(batch["attention_mask"].sum()) == sum(chosen)
        assert (batch["labels"][batch["attention_mask"] == 0] == IGNORE_INDEX).all()
        starts = np.unique(cu_seq_lens[:-1][np.diff(cu_seq_lens) > 0])
        assert (np.flatnonzero(batch["position_ids"][0].numpy() == 0) == starts).all()
    assert len(shapes) == 1 and collator.length % LENGTH_MULTIPLE == 0


@pytest.mark.parametrize(
    ("lengths", "batch_size", "least", "most"), [([128] * 8, 4, 0, 0), ([10, 1000], 1, 0.5, 1)]
)
def test_the_wasted_fraction_is_the_share_of_padding(
    lengths: list[int], batch_size: int, least: float, most: float
) -> None:
    collator = PackingCollator.for_lengths(lengths, batch_size, pad_token_id=0)
    assert least <= collator.wasted_fraction(lengths, batch_size) <= most
