"""Truncation of tokenized rows to `max_length`. An image is kept as a whole or left out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ludus.train.config import Method
from ludus.train.data.row_schema import IMAGE_COLUMNS, TOKEN_COLUMNS


def truncate_columns(
    batch: Any, method: Method, max_length: int, image_token: int | None
) -> list[Any]:
    """The columns of a batch of rows, truncated; `image_token` is None for rows without images."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if image_token is not None:
        return _truncate_between_images(batch, method, max_length, image_token)
    return [
        pc.list_slice(column, 0, max_length).cast(pa.list_(pa.int32())) for column in batch.columns
    ]


def _truncate_between_images(
    batch: Any, method: Method, max_length: int, image_token: int
) -> list[Any]:
    """The columns, truncated at `max_length` or before an image that would be split there."""
    import pyarrow as pa

    columns: dict[str, list[Any]] = {name: [] for name in batch.schema.names}
    for row in batch.to_pylist():
        for (ids, labels), urls in zip(TOKEN_COLUMNS[method], IMAGE_COLUMNS[method], strict=True):
            end, images = truncation_point(row[ids], max_length, image_token)
            columns[ids].append(row[ids][:end])
            columns[labels].append(row[labels][:end])
            columns[urls].append(row[urls][:images])
    return [pa.array(columns[field.name], field.type) for field in batch.schema]


def truncation_point(ids: Sequence[int], max_length: int, image_token: int) -> tuple[int, int]:
    """Where to truncate a row: the largest end that splits no image, and the images before it."""
    end = min(len(ids), max_length)
    while 0 < end < len(ids) and ids[end - 1] == ids[end] == image_token:
        end -= 1
    is_image = [token == image_token for token in ids[:end]]
    before = [False, *is_image[:-1]]
    images = sum(now and not last for last, now in zip(before, is_image, strict=True))
    return end, images
