"""Rows as tokens, with the ones that bear the loss marked: what a trainer is given.

Thousands of rows are shared out among processes, and what they make is streamed into an Arrow file,
so that neither time nor memory grows beyond what the disk can hold. Which rows are refused, and
where they are cut, is `ludus.train.suitable`'s business.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from ludus.errors import BadSetting, TemplateRefused
from ludus.policy.templates import Rendered, render_many
from ludus.train.examples import BadRow, conversations
from ludus.train.rows import Numbered, Split
from ludus.train.settings import Method

COLUMNS: dict[Method, tuple[tuple[str, str], ...]] = {
    "sft": (("input_ids", "labels"),),
    "dpo": (("chosen_ids", "chosen_labels"), ("rejected_ids", "rejected_labels")),
}
"""Tokens and labels of each side of a row."""
ROW = "row"
"""The column that says where a row stands."""
NO_LOSS = -100
_BATCH = 256
_MANY = 8
"""Batches from which on other processes pay for being started."""

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Maker:
    """Makes tokens of rows, under the template that the model is asked with too."""

    tokenizer: Any
    template: str
    method: Method

    def __call__(self, batch: Sequence[Numbered]) -> Batch:
        talks = [self._read(number, row) for number, row in batch]
        flat = [side for sides in talks for side in sides]
        made = iter(render_many(self.tokenizer, flat, self.template))
        rows, refused = [], []
        for (number, _), sides in zip(batch, talks, strict=True):
            rendered = list(islice(made, len(sides)))
            said = next((side for side in rendered if isinstance(side, TemplateRefused)), None)
            if said is None:
                whole = [side for side in rendered if isinstance(side, Rendered)]
                rows.append((number, [_needed(side) for side in whole]))
            else:
                refused.append((number, str(said)))
        return Batch(len(batch), _table(rows, self.method), refused)

    def _read(self, number: int, row: bytes | dict[str, Any]) -> Any:
        try:
            return conversations(row, self.method)
        except BadRow as error:
            raise Misplaced(number, str(error)) from error


class Misplaced(Exception):
    """A row that is none, by its number."""

    def __init__(self, number: int, why: str) -> None:
        super().__init__(number, why)
        self.number, self.why = number, why


@dataclass(frozen=True, slots=True)
class Batch:
    """What came of some rows."""

    read: int
    table: Any
    """A `pyarrow.Table` with the columns of the method, and `ROW`."""
    refused: list[tuple[int, str]]
    """Rows that the template does not take, and why."""


@dataclass(frozen=True, slots=True)
class Tokens:
    """All rows of a split."""

    file: Path
    read: int
    refused: list[tuple[int, str]]

    def load(self) -> Any:
        """As a `datasets.Dataset` that stays on the disk."""
        from datasets import Dataset

        return Dataset.from_file(str(self.file))


def tokenize(
    split: Split, maker: Maker, to: Path, *, say: Say, at_most: int | None = None
) -> Tokens:
    """Write the tokens of all rows to a file, or of so many from the first on."""
    import pyarrow as pa

    read, told, refused = 0, 0, []
    schema = _table([], maker.method).schema
    try:
        with pa.OSFile(str(to), "wb") as sink, pa.ipc.new_stream(sink, schema) as file:
            for made in _made(_first(split.batches(_BATCH), at_most), maker):
                file.write_table(made.table)
                read += made.read
                refused += made.refused
                if read - told >= 20_000:
                    told = read
                    say(f"{read:,} rows made into tokens")
    except Misplaced as error:
        raise BadSetting(f"{split.place(error.number)} {error.why}.") from error
    return Tokens(to, read, refused)


def _first(batches: Iterator[list[Numbered]], at_most: int | None) -> Iterator[list[Numbered]]:
    if at_most is None:
        return batches
    rows = islice((row for batch in batches for row in batch), at_most)
    return iter(lambda: list(islice(rows, _BATCH)), [])


def _made(batches: Iterator[list[Numbered]], maker: Maker) -> Iterator[Batch]:
    """Few rows here, many in other processes; in their order either way."""
    first = list(islice(batches, _MANY))
    workers = min(16, os.cpu_count() or 1)
    if len(first) < _MANY or workers == 1:
        yield from map(maker, first)
        yield from map(maker, batches)
        return
    with warnings.catch_warnings():
        # That a process with threads is copied: the copies use none of them.
        warnings.simplefilter("ignore", DeprecationWarning)
        with _pool(workers, maker) as pool:
            yield from _in_order(pool, first, batches, ahead=4 * workers)


def _in_order(
    pool: ProcessPoolExecutor, first: Iterable[Any], rest: Iterator[Any], *, ahead: int
) -> Iterator[Batch]:
    """As `map`, but never further ahead than memory likes."""
    waiting: list[Future[Batch]] = [pool.submit(_work, batch) for batch in first]
    while waiting:
        waiting += [pool.submit(_work, batch) for batch in islice(rest, ahead - len(waiting))]
        yield waiting.pop(0).result()


def _pool(workers: int, maker: Maker) -> ProcessPoolExecutor:
    # A fork has the tokenizer at once, and does not run the user's program again.
    how = "fork" if sys.platform == "linux" else None
    context = multiprocessing.get_context(how)
    return ProcessPoolExecutor(workers, context, initializer=_begin, initargs=(maker,))


_maker: Maker | None = None


def _begin(maker: Maker) -> None:
    global _maker
    # Each process is one core's worth: threads of its own would only get in each other's way.
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    _maker = maker


def _work(batch: list[Numbered]) -> Batch:
    assert _maker is not None
    return _maker(batch)


def _table(rows: Sequence[tuple[int, Sequence[Any]]], method: Method) -> Any:
    import pyarrow as pa

    numbers = pa.array([number for number, _ in rows], pa.int64())
    columns: dict[str, Any] = {ROW: numbers}
    lists = pa.list_(pa.int32())
    for side, (ids, labels) in enumerate(COLUMNS[method]):
        columns[ids] = pa.array([sides[side].ids for _, sides in rows], lists)
        columns[labels] = pa.array([_labels(sides[side]) for _, sides in rows], lists)
    return pa.table(columns)


def _needed(side: Rendered) -> Rendered:
    """Up to the last token that bears loss: nothing is learned from what follows, such as the
    environment's last word."""
    return side.cut(side.spans[-1][1]) if side.spans else side


def _labels(side: Rendered) -> list[int]:
    """The tokens that bear the loss. The first never does: nothing stands before it."""
    marked = zip(side.ids, side.mask, strict=True)
    labels = [token if bears else NO_LOSS for token, bears in marked]
    return [NO_LOSS, *labels[1:]]
