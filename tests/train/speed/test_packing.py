from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ludus.train.data.loss_mask import LossMaskIndex, check_loss_mask
from ludus.train.data.tokenization import IGNORE_INDEX
from ludus.train.speed.packing import LENGTH_MULTIPLE, PackingCollator

SIZES = st.lists(st.integers(1, 300), min_size=1, max_size=12)


def row(size: int, first: int = 10) -> dict[str, Any]:
    ids = np.arange(first, first + size)
    return {"input_ids": ids, "labels": np.where(np.arange(size) < size // 2, IGNORE_INDEX, ids)}


def test_rows_stand_end_to_end_and_know_their_places() -> None:
    strip = PackingCollator.for_lengths([3, 5], batch_size=2, pad_token_id=0)
    made = strip([row(3), row(5, first=50)])
    assert made["input_ids"][0, :9].tolist() == [10, 11, 12, 50, 51, 52, 53, 54, 0]
    assert made["position_ids"][0, :9].tolist() == [0, 1, 2, 0, 1, 2, 3, 4, 0]
    assert made["labels"][0, :9].tolist() == [-100, 11, 12, -100, -100, 52, 53, 54, -100]
    assert made["attention_mask"].sum() == 8
    assert made["cu_seq_lens_q"][:4].tolist() == [0, 3, 8, 13]


@settings(max_examples=100, deadline=None, derandomize=True)
@given(sizes=SIZES, batch=st.integers(1, 6))
def test_any_batch_of_the_rows_has_the_same_shape(sizes: list[int], batch: int) -> None:
    strip = PackingCollator.for_lengths(sizes, batch, pad_token_id=0)
    longest_first = sorted(sizes, reverse=True)[:batch]
    shapes = set()
    for chosen in (longest_first, sizes[:batch], sizes[-1:]):
        made = strip([row(size) for size in chosen])
        shapes.add(tuple((name, tuple(value.shape)) for name, value in made.items()))
        bounds = made["cu_seq_lens_q"].numpy()
        assert bounds[0] == 0 and bounds[-1] == strip.length and (np.diff(bounds) >= 0).all()
        assert np.diff(bounds).max() <= strip.longest_row
        assert int(made["attention_mask"].sum()) == sum(chosen)
        assert (made["labels"][made["attention_mask"] == 0] == IGNORE_INDEX).all()
        starts = np.unique(bounds[:-1][np.diff(bounds) > 0])
        assert (np.flatnonzero(made["position_ids"][0].numpy() == 0) == starts).all()
    assert len(shapes) == 1 and strip.length % LENGTH_MULTIPLE == 0


def test_the_first_batch_is_checked_row_by_row_in_a_strip_too() -> None:
    from datasets import Dataset

    rows = [row(4), row(7, first=100)]
    known = LossMaskIndex.build(
        Dataset.from_dict({name: [each[name] for each in rows] for name in rows[0]}), "sft"
    )
    made = PackingCollator.for_lengths([4, 7], batch_size=2, pad_token_id=0)(rows)
    assert check_loss_mask(made, known) == 2 + 4
    made["labels"][0, 1] = 11
    with pytest.raises(Exception, match="bears its loss on other tokens"):
        check_loss_mask(made, known)


def test_what_is_only_filled_up_is_known() -> None:
    assert (
        PackingCollator.for_lengths([128] * 8, batch_size=4, pad_token_id=0).wasted_fraction(
            [128] * 8, 4
        )
        == 0
    )
    assert (
        PackingCollator.for_lengths([10, 1000], batch_size=1, pad_token_id=0).wasted_fraction(
            [10, 1000], 1
        )
        > 0.5
    )
