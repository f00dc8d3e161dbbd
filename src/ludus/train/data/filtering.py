"""Filtering of tokenized rows, before training.

Rows without any loss raise an error with their location, unless `drop_untrainable` is set: a run
that silently trained on fewer rows than it was given would look like any other.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ludus.data.training_row import suggest_max_length
from ludus.errors import ConfigError
from ludus.train.config import Method
from ludus.train.data.loading import Split
from ludus.train.data.loss_mask import find_loss_starts
from ludus.train.data.row_schema import IMAGE_COLUMNS, ROW_COLUMN, TOKEN_COLUMNS
from ludus.train.data.tokenization import TokenizedRows
from ludus.train.data.truncation import truncate_columns

_ROWS_PER_BATCH = 1000
_ROWS_WITH_IMAGES_PER_BATCH = 50
"""Images take much more memory than tokens."""


@dataclass(frozen=True, slots=True)
class RowStats:
    """Arrays with a value per row; of the two sides of a pair, the larger value."""

    row_numbers: Any
    lengths: Any
    loss_starts: Any
    """The first position with loss; -1 if there is none."""


def measure_rows(dataset: Any, method: Method) -> RowStats:
    """Measure all rows of a tokenized data set at once."""
    import numpy as np

    table = dataset.data
    row_numbers = np.asarray(table.column(ROW_COLUMN))
    lengths = np.zeros(len(row_numbers), np.int64)
    loss_starts = np.zeros(len(row_numbers), np.int64)
    for _, labels in TOKEN_COLUMNS[method]:
        chunks = table.column(labels).chunks
        sizes = [np.diff(chunk.offsets.to_numpy().astype(np.int64)) for chunk in chunks]
        lengths = np.maximum(lengths, np.concatenate(sizes or [lengths]))
        starts = np.concatenate([find_loss_starts(chunk) for chunk in chunks] or [loss_starts])
        no_loss = (starts < 0) | (loss_starts < 0)
        loss_starts = np.where(no_loss, -1, np.maximum(loss_starts, starts))
    return RowStats(row_numbers, lengths, loss_starts)


def choose_max_length(stats: RowStats, *, requested: int | None, context_length: int | None) -> int:
    """The requested length, or one that fits the rows; at most the model's context length."""
    if requested is not None and context_length is not None and requested > context_length:
        raise ConfigError(
            f"`max_length` must be at most {context_length}, the context length of this model, "
            f"got {requested}."
        )
    lengths = Counter(stats.lengths.tolist())
    wanted = requested or max(2, suggest_max_length(lengths))
    return min(wanted, context_length or max(lengths, default=2))


@dataclass(frozen=True, slots=True)
class UnusableRows:
    """Rows that cannot be trained on, by their numbers, and how many are truncated."""

    template_errors: Sequence[tuple[int, str]]
    """Rows that the chat template rejects, and why."""
    without_loss: Sequence[int]
    """Rows without assistant messages."""
    truncated_away: Sequence[int]
    """Rows whose first token with loss lies behind `max_length`."""
    longest_truncated_away: int
    """The length of the longest of those."""
    truncated: int
    """How many other rows are longer than `max_length`."""
    total_rows: int
    max_length: int

    @property
    def count(self) -> int:
        return len(self.template_errors) + len(self.without_loss) + len(self.truncated_away)


def find_unusable(tokens: TokenizedRows, stats: RowStats, max_length: int) -> UnusableRows:
    """Find the rows that have no loss, or none within `max_length`."""
    no_loss, too_late = stats.loss_starts < 0, stats.loss_starts >= max_length
    return UnusableRows(
        template_errors=tokens.template_errors,
        without_loss=stats.row_numbers[no_loss].tolist(),
        truncated_away=stats.row_numbers[too_late].tolist(),
        longest_truncated_away=int(stats.lengths[too_late].max()) if too_late.any() else 0,
        truncated=int((~no_loss & ~too_late & (stats.lengths > max_length)).sum()),
        total_rows=tokens.rows_read,
        max_length=max_length,
    )


def check_usable(unusable: UnusableRows, split: Split, *, context_length: int | None) -> None:
    """Raise for the first kind of row that cannot be trained on."""
    of_rows = f"of {unusable.total_rows:,} rows"
    if unusable.template_errors:
        number, reason = unusable.template_errors[0]
        raise ConfigError(
            f"The chat template rejects {len(unusable.template_errors):,} {of_rows}; the first is "
            f"{split.location(number)}: {reason}. Fix them, or set `drop_untrainable`."
        )
    if rows := unusable.without_loss:
        raise ConfigError(
            f"{len(rows):,} {of_rows} have no assistant message to train on; the first is "
            f"{split.location(rows[0])}. Curate them, or set `drop_untrainable`."
        )
    if rows := unusable.truncated_away:
        longest = unusable.longest_truncated_away
        if context_length is None or longest <= context_length:
            hint = f"Set `max_length` to {longest} to keep them"
        else:
            hint = f"The context length of this model is {context_length}"
        raise ConfigError(
            f"{len(rows):,} {of_rows} lose all assistant messages when truncated to "
            f"{unusable.max_length} tokens; the first is {split.location(rows[0])}. {hint}; "
            "`drop_untrainable` leaves them out."
        )


def write_usable_rows(
    dataset: Any,
    stats: RowStats,
    method: Method,
    max_length: int,
    path: Path,
    image_token: int | None = None,
) -> Any:
    """Write the rows that can be trained on, truncated to `max_length`, to an Arrow file.

    `image_token` is the token that images are made of, in rows for models that take images.
    """
    import pyarrow as pa
    from datasets import Dataset

    keep = (stats.loss_starts >= 0) & (stats.loss_starts < max_length)
    names = [name for pair in TOKEN_COLUMNS[method] for name in pair]
    names += IMAGE_COLUMNS[method] if image_token is not None else ()
    batch_rows = _ROWS_PER_BATCH if image_token is None else _ROWS_WITH_IMAGES_PER_BATCH
    table, start = dataset.data.table.select(names), 0
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_stream(sink, table.schema) as file:
        for batch in table.to_batches(max_chunksize=batch_rows):
            usable = batch.filter(pa.array(keep[start : start + len(batch)]))
            start += len(batch)
            columns = truncate_columns(usable, method, max_length, image_token)
            file.write_batch(pa.record_batch(columns, schema=table.schema))
    return Dataset.from_file(str(path))
