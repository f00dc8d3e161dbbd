"""Rows as tokens, with the ones that bear the loss marked: what a trainer is given.

Thousands of rows are shared out among processes, and what they make is streamed into an Arrow file,
so that neither time nor memory grows beyond what the disk can hold. Which rows are refused, and
where they are cut, is `ludus.train.data.filtering`'s business.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from ludus.errors import ConfigError, RequestRefused, TemplateRefused
from ludus.policy.chat.rendering import RenderedConversation, render_many
from ludus.policy.vision.processor import VisionProcessor
from ludus.policy.vision.row_images import check_placeholders, expand_image_tokens
from ludus.rollout.progress import PhaseProgress
from ludus.train.config import Method
from ludus.train.data.loading import NumberedRow, Split
from ludus.train.data.row_schema import (
    InvalidRow,
    TextAndImages,
    parse_conversations,
    parse_row,
    separate_images,
)

TOKEN_COLUMNS: dict[Method, tuple[tuple[str, str], ...]] = {
    "sft": (("input_ids", "labels"),),
    "dpo": (("chosen_ids", "chosen_labels"), ("rejected_ids", "rejected_labels")),
}
"""Tokens and labels of each side of a row."""
IMAGE_COLUMNS: dict[Method, tuple[str, ...]] = {
    "sft": ("row_images",),
    "dpo": ("chosen_images", "rejected_images"),
}
"""Data URLs of the images of each side, in rows for models that see."""
ROW_COLUMN = "row"
"""The column that says where a row stands."""
IGNORE_INDEX = -100
_BATCH_ROWS = 256
_PARALLEL_MIN_BATCHES = 8
"""Batches from which on other processes pay for being started."""

TokenizedSide = tuple[RenderedConversation, Sequence[str]]
"""One conversation of a row as tokens, and the data URLs of its images."""


@dataclass(frozen=True, slots=True)
class RowTokenizer:
    """Makes tokens of rows, under the template that the model is asked with too."""

    tokenizer: Any
    template: str
    method: Method
    vision: VisionProcessor | None = None
    """How images are shown to the model; None: it reads only text."""

    def __call__(self, batch: Sequence[NumberedRow]) -> TokenizedBatch:
        environments = Counter[str]()
        rows = [self._parse_row(number, row, environments) for number, row in batch]
        flat = [side.conversation for sides in rows for side in sides]
        made = iter(render_many(self.tokenizer, flat, self.template))
        kept, refused = [], []
        for (number, _), sides in zip(batch, rows, strict=True):
            rendered = list(islice(made, len(sides)))
            try:
                kept.append((number, list(map(self._tokenize_side, rendered, sides))))
            except (TemplateRefused, RequestRefused) as error:
                refused.append((number, str(error).removesuffix(".")))
        return TokenizedBatch(len(batch), self.to_table(kept), refused, environments)

    def to_table(self, rows: Sequence[tuple[int, Sequence[TokenizedSide]]]) -> Any:
        """Rows as a `pyarrow.Table`."""
        import pyarrow as pa

        columns: dict[str, Any] = {ROW_COLUMN: pa.array([number for number, _ in rows], pa.int64())}
        lists, urls = pa.list_(pa.int32()), pa.list_(pa.large_string())
        for at, (ids, labels) in enumerate(TOKEN_COLUMNS[self.method]):
            columns[ids] = pa.array([sides[at][0].ids for _, sides in rows], lists)
            columns[labels] = pa.array([_make_labels(sides[at][0]) for _, sides in rows], lists)
        for at, images in enumerate(IMAGE_COLUMNS[self.method] if self.vision is not None else ()):
            columns[images] = pa.array([sides[at][1] for _, sides in rows], urls)
        return pa.table(columns)

    def _parse_row(
        self, number: int, row: bytes | dict[str, Any], environments: Counter[str]
    ) -> list[TextAndImages]:
        try:
            fields = parse_row(row)
            talks = parse_conversations(fields, self.method)
            if isinstance(name := fields.get("environment"), str):
                environments[name] += 1
            return [separate_images(talk, self.vision) for talk in talks]
        except InvalidRow as error:
            raise RowError(number, str(error)) from error

    def _tokenize_side(
        self, made: RenderedConversation | TemplateRefused, side: TextAndImages
    ) -> TokenizedSide:
        """What is trained on of a side, and which of its images are in that."""
        if isinstance(made, TemplateRefused):
            raise made
        needed = _trim_after_loss(made)
        if self.vision is None:
            return needed, ()
        check_placeholders(made, self.vision, side.images)
        urls = side.images[: needed.ids.count(self.vision.image_token_id)]
        return expand_image_tokens(needed, self.vision, urls), urls


class RowError(Exception):
    """A row that is none, by its number."""

    def __init__(self, number: int, reason: str) -> None:
        super().__init__(number, reason)
        self.number, self.reason = number, reason


@dataclass(frozen=True, slots=True)
class TokenizedBatch:
    """What came of some rows."""

    rows_read: int
    table: Any
    """A `pyarrow.Table` with the columns of the method, and `ROW`."""
    template_errors: list[tuple[int, str]]
    """Rows that the template does not take, and why."""
    environments: Counter[str]
    """How many rows came from which environment, where rows say so."""


@dataclass(frozen=True, slots=True)
class TokenizedRows:
    """All rows of a split."""

    file: Path
    rows_read: int
    template_errors: list[tuple[int, str]]
    environments: Counter[str] = field(default_factory=Counter)

    def load(self) -> Any:
        """As a `datasets.Dataset` that stays on the disk."""
        from datasets import Dataset

        return Dataset.from_file(str(self.file))


def tokenize(
    split: Split,
    row_tokenizer: RowTokenizer,
    path: Path,
    *,
    progress: PhaseProgress | None = None,
    max_rows: int | None = None,
) -> TokenizedRows:
    """Write the tokens of all rows to a file, or of so many from the first on."""
    import pyarrow as pa

    read, refused, environments = 0, [], Counter[str]()
    schema = row_tokenizer.to_table([]).schema
    try:
        with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_stream(sink, schema) as file:
            for made in _tokenize_batches(
                _limit_rows(split.batches(_BATCH_ROWS), max_rows), row_tokenizer
            ):
                file.write_table(made.table)
                read += made.rows_read
                refused += made.template_errors
                environments += made.environments
                if progress is not None:
                    progress.advance(made.rows_read)
    except RowError as error:
        raise ConfigError(f"{split.location(error.number)} {error.reason}.") from error
    return TokenizedRows(path, read, refused, environments)


def _limit_rows(
    batches: Iterator[list[NumberedRow]], at_most: int | None
) -> Iterator[list[NumberedRow]]:
    if at_most is None:
        return batches
    rows = islice((row for batch in batches for row in batch), at_most)
    return iter(lambda: list(islice(rows, _BATCH_ROWS)), [])


def _tokenize_batches(
    batches: Iterator[list[NumberedRow]], maker: RowTokenizer
) -> Iterator[TokenizedBatch]:
    """Few rows here, many in other processes; in their order either way."""
    first = list(islice(batches, _PARALLEL_MIN_BATCHES))
    workers = min(16, os.cpu_count() or 1)
    if len(first) < _PARALLEL_MIN_BATCHES or workers == 1:
        yield from map(maker, first)
        yield from map(maker, batches)
        return
    with warnings.catch_warnings():
        # That a process with threads is copied: the copies use none of them.
        warnings.simplefilter("ignore", DeprecationWarning)
        with _start_pool(workers, maker) as pool:
            yield from _map_in_order(pool, first, batches, ahead=4 * workers)


def _map_in_order(
    pool: ProcessPoolExecutor, first: Iterable[Any], rest: Iterator[Any], *, ahead: int
) -> Iterator[TokenizedBatch]:
    """As `map`, but never further ahead than memory likes."""
    waiting: list[Future[TokenizedBatch]] = [
        pool.submit(_tokenize_in_worker, batch) for batch in first
    ]
    while waiting:
        waiting += [
            pool.submit(_tokenize_in_worker, batch) for batch in islice(rest, ahead - len(waiting))
        ]
        yield waiting.pop(0).result()


def _start_pool(workers: int, maker: RowTokenizer) -> ProcessPoolExecutor:
    # A fork has the tokenizer at once, and does not run the user's program again.
    how = "fork" if sys.platform == "linux" else None
    context = multiprocessing.get_context(how)
    return ProcessPoolExecutor(workers, context, initializer=_init_worker, initargs=(maker,))


_worker_tokenizer: RowTokenizer | None = None


def _init_worker(maker: RowTokenizer) -> None:
    global _worker_tokenizer
    # Each process is one core's worth: threads of its own would only get in each other's way.
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    _worker_tokenizer = maker


def _tokenize_in_worker(batch: list[NumberedRow]) -> TokenizedBatch:
    assert _worker_tokenizer is not None
    return _worker_tokenizer(batch)


def _trim_after_loss(side: RenderedConversation) -> RenderedConversation:
    """Up to the last token that bears loss: nothing is learned from what follows, such as the
    environment's last word."""
    return side.truncate(side.spans[-1][1]) if side.spans else side


def _make_labels(side: RenderedConversation) -> list[int]:
    """The tokens that bear the loss. The first never does: nothing stands before it."""
    marked = zip(side.ids, side.mask, strict=True)
    labels = [token if bears else IGNORE_INDEX for token, bears in marked]
    return [IGNORE_INDEX, *labels[1:]]
