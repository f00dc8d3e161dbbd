"""Which rows can be learned from, and how much of each: said before training, never found after.

A row of which nothing would be learned is refused with its place, because a run that silently
trains on fewer rows than it was given looks like any other. Works on tokens as
`ludus.train.tokens` makes them; what made them is not its business.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ludus.data.spread import suggest_max_length
from ludus.errors import ConfigError
from ludus.train.rows import Split
from ludus.train.settings import Method
from ludus.train.tokens import COLUMNS, IMAGES, NO_LOSS, ROW, Tokens


@dataclass(frozen=True, slots=True)
class Shape:
    """Of each row, its place, how long it is, and where its loss begins; of a pair, the worse."""

    rows: Any
    lengths: Any
    begins: Any
    """The first token that bears the loss; -1 where none does."""


def shape_of(dataset: Any, method: Method) -> Shape:
    """Measured on the tokens themselves, all at once."""
    import numpy as np

    table = dataset.data
    rows = np.asarray(table.column(ROW))
    lengths, begins = np.zeros(len(rows), np.int64), np.zeros(len(rows), np.int64)
    for _, labels in COLUMNS[method]:
        chunks = [_measured(chunk) for chunk in table.column(labels).chunks]
        sizes = np.concatenate([size for size, _ in chunks] or [lengths])
        first = np.concatenate([begin for _, begin in chunks] or [begins])
        lengths = np.maximum(lengths, sizes)
        begins = np.where((first < 0) | (begins < 0), -1, np.maximum(begins, first))
    return Shape(rows, lengths, begins)


def _measured(labels: Any) -> tuple[Any, Any]:
    import numpy as np

    offsets = labels.offsets.to_numpy().astype(np.int64)
    marked = np.flatnonzero(labels.values.to_numpy() != NO_LOSS)
    starts, ends = offsets[:-1], offsets[1:]
    at = np.searchsorted(marked, starts)
    nearest = np.append(marked, np.iinfo(np.int64).max)[at]
    return ends - starts, np.where(nearest < ends, nearest - starts, -1)


def wanted_length(shape: Shape, *, asked: int | None, context_length: int | None) -> int:
    """As asked, or as the rows ask for; never more than the model can read."""
    if asked is not None and context_length is not None and asked > context_length:
        raise ConfigError(
            f"--max-length {asked} is more than this model reads: {context_length} tokens at most."
        )
    lengths = Counter(shape.lengths.tolist())
    return min(
        asked or max(2, suggest_max_length(lengths)), context_length or max(lengths, default=2)
    )


@dataclass(frozen=True, slots=True)
class Findings:
    """Rows that cannot be learned from."""

    refused: Sequence[tuple[int, str]]
    """The template does not take them."""
    silent: Sequence[int]
    """The assistant says nothing in them."""
    cut: Sequence[int]
    """What it says lies behind `max_length`."""
    longest_cut: int
    """The longest of those."""
    shortened: int
    """Rows that lose their end to `max_length`, and are learned from all the same."""
    rows: int
    max_length: int

    @property
    def count(self) -> int:
        return len(self.refused) + len(self.silent) + len(self.cut)


def find(tokens: Tokens, shape: Shape, max_length: int) -> Findings:
    silent, cut = shape.begins < 0, shape.begins >= max_length
    longest = int(shape.lengths[cut].max()) if cut.any() else 0
    shortened = int((~silent & ~cut & (shape.lengths > max_length)).sum())
    rows = [shape.rows[each].tolist() for each in (silent, cut)]
    return Findings(tokens.refused, rows[0], rows[1], longest, shortened, tokens.read, max_length)


def refuse(found: Findings, split: Split, *, context_length: int | None) -> None:
    """Raise over the first kind of row that cannot be learned from."""
    place, leave_out = split.location, "or leave them out with --drop."
    if found.refused:
        number, why = found.refused[0]
        raise ConfigError(
            f"{_of(found.refused, found)} cannot be shown to this model; the first is "
            f"{place(number)}: {why}. Repair them, {leave_out}"
        )
    if found.silent:
        raise ConfigError(
            f"{_of(found.silent, found)} hold no word of an assistant to learn from; the first is "
            f"{place(found.silent[0])}. Curate them, {leave_out}"
        )
    if found.cut:
        fits = context_length is None or found.longest_cut <= context_length
        keep = f"--max-length {found.longest_cut} keeps them" if fits else (
            f"this model reads {context_length} tokens at most"
        )  # fmt: skip
        raise ConfigError(
            f"{_of(found.cut, found)} lose all that the assistant says when cut to "
            f"{found.max_length} tokens; the first is {place(found.cut[0])}. {keep}; --drop leaves "
            "them out."
        )


def _of(some: Sequence[Any], found: Findings) -> str:
    return f"{len(some):,} of {found.rows:,} rows"


def fitted(
    dataset: Any, shape: Shape, method: Method, max_length: int, to: Path, image: int | None = None
) -> Any:
    """The rows that can be learned from, each cut to `max_length`, in a file of their own.

    `image` is the token that stands for a part of an image, in rows for a model that sees.
    """
    import pyarrow as pa
    from datasets import Dataset

    keep = (shape.begins >= 0) & (shape.begins < max_length)
    names = [name for pair in COLUMNS[method] for name in pair]
    names += IMAGES[method] if image is not None else ()
    table, at = dataset.data.table.select(names), 0
    with pa.OSFile(str(to), "wb") as sink, pa.ipc.new_stream(sink, table.schema) as file:
        # Images take much more memory than tokens.
        for batch in table.to_batches(max_chunksize=1000 if image is None else 50):
            kept = batch.filter(pa.array(keep[at : at + len(batch)]))
            at += len(batch)
            if image is None:
                columns = [_cut(column, max_length) for column in kept.columns]
            else:
                columns = _cut_between_images(kept, method, max_length, image)
            file.write_batch(pa.record_batch(columns, schema=table.schema))
    return Dataset.from_file(str(to))


def _cut(column: Any, max_length: int) -> Any:
    import pyarrow as pa
    import pyarrow.compute as pc

    return pc.list_slice(column, 0, max_length).cast(pa.list_(pa.int32()))


def _cut_between_images(batch: Any, method: Method, max_length: int, image: int) -> list[Any]:
    """The columns of rows that end at `max_length`, or before an image that would be cut there."""
    import pyarrow as pa

    columns: dict[str, list[Any]] = {name: [] for name in batch.schema.names}
    for row in batch.to_pylist():
        for (ids, labels), urls in zip(COLUMNS[method], IMAGES[method], strict=True):
            end, images = end_of_row(row[ids], max_length, image)
            columns[ids].append(row[ids][:end])
            columns[labels].append(row[labels][:end])
            columns[urls].append(row[urls][:images])
    return [pa.array(columns[field.name], field.type) for field in batch.schema]


def end_of_row(ids: Sequence[int], max_length: int, image: int) -> tuple[int, int]:
    """Where a row ends that holds only whole images, and how many of them it holds."""
    end = min(len(ids), max_length)
    while 0 < end < len(ids) and ids[end - 1] == ids[end] == image:
        end -= 1
    begins = (at for at in range(end) if ids[at] == image and (at == 0 or ids[at - 1] != image))
    return end, sum(1 for _ in begins)
