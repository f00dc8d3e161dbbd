"""Which rows can be learned from, and how much of each: said before training, never found after.

A row of which nothing would be learned is refused with its place, because a run that silently
trains on fewer rows than it was given looks like any other. Works on tokens as
`ludus.train.data.tokenization` makes them; what made them is not its business.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ludus.data.length_stats import suggest_max_length
from ludus.errors import ConfigError
from ludus.train.config import Method
from ludus.train.data.loading import Split
from ludus.train.data.tokenization import (
    IGNORE_INDEX,
    IMAGE_COLUMNS,
    ROW_COLUMN,
    TOKEN_COLUMNS,
    TokenizedRows,
)


@dataclass(frozen=True, slots=True)
class RowStats:
    """Of each row, its place, how long it is, and where its loss begins; of a pair, the worse."""

    row_numbers: Any
    lengths: Any
    loss_starts: Any
    """The first token that bears the loss; -1 where none does."""


def measure_rows(dataset: Any, method: Method) -> RowStats:
    """Measured on the tokens themselves, all at once."""
    import numpy as np

    table = dataset.data
    rows = np.asarray(table.column(ROW_COLUMN))
    lengths, begins = np.zeros(len(rows), np.int64), np.zeros(len(rows), np.int64)
    for _, labels in TOKEN_COLUMNS[method]:
        chunks = [_measure_chunk(chunk) for chunk in table.column(labels).chunks]
        sizes = np.concatenate([size for size, _ in chunks] or [lengths])
        first = np.concatenate([begin for _, begin in chunks] or [begins])
        lengths = np.maximum(lengths, sizes)
        begins = np.where((first < 0) | (begins < 0), -1, np.maximum(begins, first))
    return RowStats(rows, lengths, begins)


def _measure_chunk(labels: Any) -> tuple[Any, Any]:
    import numpy as np

    offsets = labels.offsets.to_numpy().astype(np.int64)
    marked = np.flatnonzero(labels.values.to_numpy() != IGNORE_INDEX)
    starts, ends = offsets[:-1], offsets[1:]
    at = np.searchsorted(marked, starts)
    nearest = np.append(marked, np.iinfo(np.int64).max)[at]
    return ends - starts, np.where(nearest < ends, nearest - starts, -1)


def choose_max_length(stats: RowStats, *, requested: int | None, context_length: int | None) -> int:
    """As asked, or as the rows ask for; never more than the model can read."""
    if requested is not None and context_length is not None and requested > context_length:
        raise ConfigError(
            f"--max-length {requested} is more than this model reads: {context_length} tokens at most."
        )
    lengths = Counter(stats.lengths.tolist())
    return min(
        requested or max(2, suggest_max_length(lengths)), context_length or max(lengths, default=2)
    )


@dataclass(frozen=True, slots=True)
class UnusableRows:
    """Rows that cannot be learned from."""

    template_errors: Sequence[tuple[int, str]]
    """The template does not take them."""
    without_loss: Sequence[int]
    """The assistant says nothing in them."""
    truncated_away: Sequence[int]
    """What it says lies behind `max_length`."""
    longest_truncated_away: int
    """The longest of those."""
    truncated: int
    """Rows that lose their end to `max_length`, and are learned from all the same."""
    total_rows: int
    max_length: int

    @property
    def count(self) -> int:
        return len(self.template_errors) + len(self.without_loss) + len(self.truncated_away)


def find_unusable(tokens: TokenizedRows, stats: RowStats, max_length: int) -> UnusableRows:
    silent, cut = stats.loss_starts < 0, stats.loss_starts >= max_length
    longest = int(stats.lengths[cut].max()) if cut.any() else 0
    shortened = int((~silent & ~cut & (stats.lengths > max_length)).sum())
    rows = [stats.row_numbers[each].tolist() for each in (silent, cut)]
    return UnusableRows(
        tokens.template_errors, rows[0], rows[1], longest, shortened, tokens.rows_read, max_length
    )


def check_usable(unusable: UnusableRows, split: Split, *, context_length: int | None) -> None:
    """Raise over the first kind of row that cannot be learned from."""
    place, leave_out = split.location, "or leave them out with --drop."
    if unusable.template_errors:
        number, why = unusable.template_errors[0]
        raise ConfigError(
            f"{_count_phrase(unusable.template_errors, unusable)} cannot be shown to this model; the first is "
            f"{place(number)}: {why}. Repair them, {leave_out}"
        )
    if unusable.without_loss:
        raise ConfigError(
            f"{_count_phrase(unusable.without_loss, unusable)} hold no word of an assistant to learn from; the first is "
            f"{place(unusable.without_loss[0])}. Curate them, {leave_out}"
        )
    if unusable.truncated_away:
        fits = context_length is None or unusable.longest_truncated_away <= context_length
        keep = f"--max-length {unusable.longest_truncated_away} keeps them" if fits else (
            f"this model reads {context_length} tokens at most"
        )  # fmt: skip
        raise ConfigError(
            f"{_count_phrase(unusable.truncated_away, unusable)} lose all that the assistant says when cut to "
            f"{unusable.max_length} tokens; the first is {place(unusable.truncated_away[0])}. {keep}; --drop leaves "
            "them out."
        )


def _count_phrase(some: Sequence[Any], found: UnusableRows) -> str:
    return f"{len(some):,} of {found.total_rows:,} rows"


def write_usable_rows(
    dataset: Any,
    stats: RowStats,
    method: Method,
    max_length: int,
    path: Path,
    image_token: int | None = None,
) -> Any:
    """The rows that can be learned from, each cut to `max_length`, in a file of their own.

    `image` is the token that stands for a part of an image, in rows for a model that sees.
    """
    import pyarrow as pa
    from datasets import Dataset

    keep = (stats.loss_starts >= 0) & (stats.loss_starts < max_length)
    names = [name for pair in TOKEN_COLUMNS[method] for name in pair]
    names += IMAGE_COLUMNS[method] if image_token is not None else ()
    table, at = dataset.data.table.select(names), 0
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_stream(sink, table.schema) as file:
        # Images take much more memory than tokens.
        for batch in table.to_batches(max_chunksize=1000 if image_token is None else 50):
            kept = batch.filter(pa.array(keep[at : at + len(batch)]))
            at += len(batch)
            if image_token is None:
                columns = [_truncate_column(column, max_length) for column in kept.columns]
            else:
                columns = _truncate_between_images(kept, method, max_length, image_token)
            file.write_batch(pa.record_batch(columns, schema=table.schema))
    return Dataset.from_file(str(path))


def _truncate_column(column: Any, max_length: int) -> Any:
    import pyarrow as pa
    import pyarrow.compute as pc

    return pc.list_slice(column, 0, max_length).cast(pa.list_(pa.int32()))


def _truncate_between_images(
    batch: Any, method: Method, max_length: int, image_token: int
) -> list[Any]:
    """The columns of rows that end at `max_length`, or before an image that would be cut there."""
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
    """Where a row ends that holds only whole images, and how many of them it holds."""
    end = min(len(ids), max_length)
    while 0 < end < len(ids) and ids[end - 1] == ids[end] == image_token:
        end -= 1
    begins = (
        at
        for at in range(end)
        if ids[at] == image_token and (at == 0 or ids[at - 1] != image_token)
    )
    return end, sum(1 for _ in begins)
