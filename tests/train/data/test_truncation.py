from __future__ import annotations

import pytest

from ludus.train.data.prepared_data import truncation_point


@pytest.mark.parametrize(
    ("ids", "max_length", "end", "images"),
    [
        ([1, 7, 7, 2, 7, 7, 3], 7, 7, 2),
        ([1, 7, 7, 2, 7, 7, 3], 6, 6, 2),
        ([1, 7, 7, 2, 7, 7, 3], 5, 4, 1),
        ([1, 7, 7, 2, 7, 7, 3], 4, 4, 1),
        ([1, 7, 7, 2, 7, 7, 3], 2, 1, 0),
        ([1, 2, 3], 2, 2, 0),
    ],
)
def test_a_row_is_not_truncated_within_an_image(
    ids: list[int], max_length: int, end: int, images: int
) -> None:
    assert truncation_point(ids, max_length, image_token=7) == (end, images)
