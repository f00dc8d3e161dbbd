"""The data that a trainer gets: tokenized rows, filtered and truncated.

The main process writes it into the folder `tokens`; the other ranks load it from there. Rows
without any loss raise an error with their location, unless `drop_untrainable` is set: a run that
silently trained on fewer rows than it was given would look like any other.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ludus.data.training_row import suggest_max_length
from ludus.errors import ConfigError
from ludus.train.config import Method, TrainConfig
from ludus.train.data.rows import IGNORE_INDEX, IMAGE_COLUMNS, ROW_COLUMN, TOKEN_COLUMNS
from ludus.train.data.tokenization import TokenizedRows
from ludus.train.data.training_data import Split, TrainingData

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    from datasets import Dataset

    Array = np.ndarray[Any, Any]

_TRAIN_FILE, _TEST_FILE = "train.arrow", "test.arrow"
_COUNTS_FILE = "counts.json"
_ROWS_PER_BATCH = 1000
_ROWS_WITH_IMAGES_PER_BATCH = 50
"""Images take much more memory than tokens."""


@dataclass(frozen=True, slots=True)
class PreparedData:
    """Counts of the prepared rows, written beside them."""

    rows: int
    """Rows that are trained on."""
    dropped: int
    truncated: int
    """Number of truncated rows among those that are trained on."""
    test_rows: int
    max_length: int
    environments: dict[str, int] = field(default_factory=dict)
    """How many rows come from which environment, if rows say so."""


def prepare_data(
    tokenized: tuple[TokenizedRows, TokenizedRows | None],
    data: TrainingData,
    method: Method,
    config: TrainConfig,
    *,
    context_length: int | None,
    folder: Path,
    image_token: int | None = None,
) -> PreparedData:
    """Prepare the training and the test rows: filter and truncate them.

    Raises for rows that cannot be trained on. `image_token` is the token that images are made of;
    None for models that take only text.
    """
    train, test = tokenized
    dataset = train.load()
    stats = measure_rows(dataset, method)
    max_length = choose_max_length(
        stats, requested=config.max_length, context_length=context_length
    )
    if not config.drop_untrainable:
        check_usable(train, stats, max_length, data.train)
    rows = write_usable_rows(dataset, stats, method, max_length, folder / _TRAIN_FILE, image_token)
    if not len(rows):
        raise ConfigError(f"{data.name} has no row that can be trained on.")
    test_rows = 0
    if test is not None and test.rows_read:
        dataset, file = test.load(), folder / _TEST_FILE
        test_stats = measure_rows(dataset, method)
        # Rows without loss are left out silently: nothing can be measured on them.
        test_rows = len(
            write_usable_rows(dataset, test_stats, method, max_length, file, image_token)
        )
        if not test_rows:
            file.unlink()
    usable = stats.usable(max_length)
    prepared = PreparedData(
        len(rows), train.rows_read - len(rows), int((usable & (stats.lengths > max_length)).sum()),
        test_rows, max_length, dict(train.environments),
    )  # fmt: skip
    (folder / _COUNTS_FILE).write_text(json.dumps(asdict(prepared)), encoding="utf-8")
    return prepared


@dataclass(frozen=True, slots=True)
class PreparedRows:
    """The rows that `prepare_data` wrote into a folder, memory-mapped."""

    folder: Path

    def counts(self) -> PreparedData:
        """The counts, as the main process wrote them."""
        return PreparedData(**json.loads((self.folder / _COUNTS_FILE).read_text(encoding="utf-8")))

    def train(self) -> Dataset:
        from datasets import Dataset

        return Dataset.from_file(str(self.folder / _TRAIN_FILE))

    def test(self) -> Dataset | None:
        """The test rows, if there are any."""
        from datasets import Dataset

        file = self.folder / _TEST_FILE
        return Dataset.from_file(str(file)) if file.is_file() else None


@dataclass(frozen=True, slots=True)
class RowStats:
    """Arrays with a value per row; of the two sides of a pair, the larger value."""

    row_numbers: Array
    lengths: Array
    loss_starts: Array
    """The first position with loss; -1 if there is none."""

    def usable(self, max_length: int) -> Array:
        """Whether a row truncated to `max_length` has loss."""
        return (self.loss_starts >= 0) & (self.loss_starts < max_length)


def measure_rows(dataset: Dataset, method: Method) -> RowStats:
    """Measure all rows of a tokenized data set at once."""
    import numpy as np

    table = dataset.data
    row_numbers = np.asarray(table.column(ROW_COLUMN))
    lengths = np.zeros(len(row_numbers), np.int64)
    loss_starts = np.zeros(len(row_numbers), np.int64)
    for _, column in TOKEN_COLUMNS[method]:
        sizes, starts = [lengths[:0]], [loss_starts[:0]]
        for labels in table.column(column).chunks:
            offsets = labels.offsets.to_numpy().astype(np.int64)
            with_loss = np.flatnonzero(labels.values.to_numpy() != IGNORE_INDEX)
            nearest = np.searchsorted(with_loss, offsets[:-1])
            first = np.append(with_loss, np.iinfo(np.int64).max)[nearest]
            starts.append(np.where(first < offsets[1:], first - offsets[:-1], -1))
            sizes.append(np.diff(offsets))
        lengths = np.maximum(lengths, np.concatenate(sizes))
        side_starts = np.concatenate(starts)
        no_loss = (side_starts < 0) | (loss_starts < 0)
        loss_starts = np.where(no_loss, -1, np.maximum(loss_starts, side_starts))
    return RowStats(row_numbers, lengths, loss_starts)


def choose_max_length(stats: RowStats, *, requested: int | None, context_length: int | None) -> int:
    """Choose the requested length, or one that fits; the model's context at most."""
    if requested is not None and context_length is not None and requested > context_length:
        raise ConfigError(
            f"`max_length` must be at most {context_length}, the context length of this model, "
            f"got {requested}."
        )
    lengths = Counter(stats.lengths.tolist())
    wanted = requested or max(2, suggest_max_length(lengths))
    return min(wanted, context_length or max(lengths, default=2))


def check_usable(tokens: TokenizedRows, stats: RowStats, max_length: int, split: Split) -> None:
    """Raise for the first row that cannot be trained on."""
    of_rows = f"of {tokens.rows_read:,} rows"
    if tokens.template_errors:
        number, reason = tokens.template_errors[0]
        raise ConfigError(
            f"The chat template rejects {len(tokens.template_errors):,} {of_rows}; the first is "
            f"{split.location(number)}: {reason}. Fix them, or set `drop_untrainable`."
        )
    if (no_loss := stats.loss_starts < 0).any():
        raise ConfigError(
            f"{no_loss.sum():,} {of_rows} have no assistant message to train on; the first is "
            f"{split.location(int(stats.row_numbers[no_loss][0]))}. Curate them, or set "
            "`drop_untrainable`."
        )
    if (too_late := stats.loss_starts >= max_length).any():
        raise ConfigError(
            f"{too_late.sum():,} {of_rows} lose all assistant messages when truncated to "
            f"{max_length} tokens; the first is "
            f"{split.location(int(stats.row_numbers[too_late][0]))}. Set `max_length` to "
            f"{stats.lengths[too_late].max()} to keep them; `drop_untrainable` leaves them out."
        )


def write_usable_rows(
    dataset: Dataset,
    stats: RowStats,
    method: Method,
    max_length: int,
    path: Path,
    image_token: int | None = None,
) -> Dataset:
    """Write the rows that can be trained on, truncated to `max_length`, to an Arrow file."""
    import pyarrow as pa
    import pyarrow.compute as pc
    from datasets import Dataset

    keep = stats.usable(max_length)
    names = [name for pair in TOKEN_COLUMNS[method] for name in pair]
    names += IMAGE_COLUMNS[method] if image_token is not None else ()
    batch_rows = _ROWS_PER_BATCH if image_token is None else _ROWS_WITH_IMAGES_PER_BATCH
    table, start = dataset.data.table.select(names), 0
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_stream(sink, table.schema) as file:
        for batch in table.to_batches(max_chunksize=batch_rows):
            usable = batch.filter(pa.array(keep[start : start + len(batch)]))
            start += len(batch)
            if image_token is not None:
                columns = _truncate_between_images(usable, method, max_length, image_token)
            else:
                ids = pa.list_(pa.int32())
                columns = [pc.list_slice(each, 0, max_length).cast(ids) for each in usable.columns]
            file.write_batch(pa.record_batch(columns, schema=table.schema))
    return Dataset.from_file(str(path))


def _truncate_between_images(
    batch: pa.RecordBatch, method: Method, max_length: int, image_token: int
) -> list[pa.Array]:
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
    """The largest end of a row that splits no image, and the number of images before it."""
    end = min(len(ids), max_length)
    while 0 < end < len(ids) and ids[end - 1] == ids[end] == image_token:
        end -= 1
    is_image = [token == image_token for token in ids[:end]]
    before = [False, *is_image[:-1]]
    images = sum(now and not last for last, now in zip(before, is_image, strict=True))
    return end, images
