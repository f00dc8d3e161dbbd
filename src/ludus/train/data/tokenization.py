"""Tokenization of rows into an Arrow file, with labels.

Large data sets are tokenized in parallel processes and streamed to disk, so that memory stays
bounded. Filtering and truncation follow in `ludus.train.data.prepared_data`.
"""

from __future__ import annotations

import multiprocessing
import os
import shutil
import sys
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ludus.data.training_row import InvalidRow, parse_row_columns
from ludus.errors import ConfigError, RequestRefused, TemplateRefused
from ludus.policy.chat.rendering import RenderedConversation, render_many
from ludus.policy.vision.processor import VisionProcessor
from ludus.policy.vision.training_images import expand_image_tokens, separate_row_images
from ludus.rollout.progress import PhaseProgress
from ludus.train.config import Method
from ludus.train.data.rows import (
    IGNORE_INDEX,
    IMAGE_COLUMNS,
    ROW_COLUMN,
    TOKEN_COLUMNS,
    parse_conversations,
)
from ludus.train.data.training_data import NumberedRow, Split, TrainingData

if TYPE_CHECKING:
    import pyarrow as pa
    from datasets import Dataset
    from transformers import PreTrainedTokenizerBase

_BATCH_ROWS = 256
_PARALLEL_MIN_BATCHES = 8
"""Minimum number of batches for which starting processes pays off."""
_MAX_WORKERS = 16
MAX_TEST_ROWS = 256
"""Rows on which the eval loss is measured: enough to see it rise, and fast."""

TokenizedSide = tuple[RenderedConversation, Sequence[str]]
"""One conversation of a row, and the data URLs of its images."""


class RowError(Exception):
    """An invalid row, by its number."""

    def __init__(self, number: int, reason: str) -> None:
        super().__init__(number, reason)
        self.number, self.reason = number, reason


@dataclass(frozen=True, slots=True)
class TokenizedBatch:
    """The result of tokenizing a batch of rows."""

    table: pa.Table
    """The columns of the method, and `ROW_COLUMN`."""
    template_errors: list[tuple[int, str]]
    """Rows that the chat template rejects, and why."""
    environments: Counter[str]
    """How many rows come from which environment, if rows say so."""


@dataclass(frozen=True, slots=True)
class RowTokenizer:
    """Tokenizes rows with the chat template that inference uses too."""

    tokenizer: PreTrainedTokenizerBase
    template: str
    method: Method
    vision: VisionProcessor | None = None
    """For models that take images."""

    def __call__(self, batch: Sequence[NumberedRow]) -> TokenizedBatch:
        environments = Counter[str]()
        rows = []
        for number, row in batch:
            try:
                fields = parse_row_columns(row)
                parsed = parse_conversations(fields, self.method)
                if isinstance(name := fields.get("environment"), str):
                    environments[name] += 1
                rows.append([separate_row_images(each, self.vision) for each in parsed])
            except InvalidRow as error:
                raise RowError(number, str(error)) from error
        conversations = [conversation for sides in rows for conversation, _ in sides]
        rendered = iter(render_many(self.tokenizer, conversations, self.template))
        tokenized, template_errors = [], []
        for (number, _), sides in zip(batch, rows, strict=True):
            results, images = list(islice(rendered, len(sides))), [urls for _, urls in sides]
            try:
                tokenized.append((number, list(map(self._tokenize_side, results, images))))
            except (TemplateRefused, RequestRefused) as error:
                template_errors.append((number, str(error).removesuffix(".")))
        return TokenizedBatch(self.to_table(tokenized), template_errors, environments)

    def to_table(self, rows: Sequence[tuple[int, Sequence[TokenizedSide]]]) -> pa.Table:
        import pyarrow as pa

        columns: dict[str, Any] = {ROW_COLUMN: pa.array([number for number, _ in rows], pa.int64())}
        lists, urls = pa.list_(pa.int32()), pa.list_(pa.large_string())
        for side, (ids, labels) in enumerate(TOKEN_COLUMNS[self.method]):
            columns[ids] = pa.array([sides[side][0].ids for _, sides in rows], lists)
            columns[labels] = pa.array([make_labels(sides[side][0]) for _, sides in rows], lists)
        for side, images in enumerate(IMAGE_COLUMNS[self.method] if self.vision else ()):
            columns[images] = pa.array([sides[side][1] for _, sides in rows], urls)
        return pa.table(columns)

    def _tokenize_side(
        self, rendered: RenderedConversation | TemplateRefused, images: Sequence[str]
    ) -> TokenizedSide:
        """The tokens that are trained on, and the images that are among them."""
        if isinstance(rendered, TemplateRefused):
            raise rendered
        # What follows the last token with loss, such as a last observation, is not needed.
        spans = rendered.spans
        trimmed = rendered.truncate(spans[-1][1]) if spans else rendered
        if self.vision is None:
            return trimmed, ()
        self.vision.check_placeholders(rendered.ids, len(images))
        urls = images[: trimmed.ids.count(self.vision.image_token_id)]
        return expand_image_tokens(trimmed, self.vision, urls), urls


def make_labels(conversation: RenderedConversation) -> list[int]:
    """Make the labels of rows. The first token has no loss: nothing predicts it."""
    tokens = zip(conversation.ids, conversation.mask, strict=True)
    labels = [token if has_loss else IGNORE_INDEX for token, has_loss in tokens]
    return [IGNORE_INDEX, *labels[1:]]


@dataclass(frozen=True, slots=True)
class TokenizedRows:
    """A tokenized split, on disk."""

    file: Path
    rows_read: int
    template_errors: list[tuple[int, str]]
    environments: Counter[str] = field(default_factory=Counter)

    def load(self) -> Dataset:
        """The rows, memory-mapped."""
        from datasets import Dataset

        return Dataset.from_file(str(self.file))


def check_rows(data: TrainingData, method: Method) -> None:
    """Raise if one of the first rows is invalid, or if none of them has a loss.

    Tokenization finds the others, after seconds in which torch and the tokenizer are loaded.
    """
    number, has_loss = 0, False
    for number, row in islice(data.train.rows(), _BATCH_ROWS):
        try:
            sides = parse_conversations(row, method)
        except InvalidRow as error:
            raise ConfigError(f"{data.train.location(number)} {error}.") from error
        replies = [side.messages[side.num_prompt_messages :] for side in sides]
        has_loss = has_loss or all(
            any(each["role"] == "assistant" and each.get("weight") != 0 for each in messages)
            for messages in replies
        )
    if not number:
        raise ConfigError(f"{data.name} has no rows to train on.")
    if not has_loss:
        raise ConfigError(
            f"{data.name} has no assistant message to train on (rows read: {number:,}). Rows need "
            "messages with the role `assistant`."
        )


def tokenize(
    split: Split,
    row_tokenizer: RowTokenizer,
    path: Path,
    *,
    progress: PhaseProgress | None = None,
    max_rows: int | None = None,
) -> TokenizedRows:
    """Tokenize all rows, or the first `max_rows`, into an Arrow file."""
    import pyarrow as pa

    rows = islice(split.rows(), max_rows)
    batches = iter(lambda: list(islice(rows, _BATCH_ROWS)), [])
    rows_read, template_errors, environments = 0, [], Counter[str]()
    schema = row_tokenizer.to_table([]).schema
    try:
        with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_stream(sink, schema) as file:
            for batch in _tokenize_batches(batches, row_tokenizer):
                file.write_table(batch.table)
                count = len(batch.table) + len(batch.template_errors)
                rows_read += count
                template_errors += batch.template_errors
                environments += batch.environments
                if progress is not None:
                    progress.advance(count)
    except RowError as error:
        raise ConfigError(f"{split.location(error.number)} {error.reason}.") from error
    return TokenizedRows(path, rows_read, template_errors, environments)


def tokenize_splits(
    data: TrainingData,
    row_tokenizer: RowTokenizer,
    folder: Path,
    progress: PhaseProgress | None = None,
) -> tuple[TokenizedRows, TokenizedRows | None]:
    """Tokenize the training and the test split into `folder`. Raises for the first invalid row."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    train = tokenize(data.train, row_tokenizer, folder / "rows.arrow", progress=progress)
    if data.test is None:
        return train, None
    file = folder / "test-rows.arrow"
    test = tokenize(data.test, row_tokenizer, file, progress=progress, max_rows=MAX_TEST_ROWS)
    return train, test


def _tokenize_batches(
    batches: Iterator[list[NumberedRow]], row_tokenizer: RowTokenizer
) -> Iterator[TokenizedBatch]:
    """Tokenize in order, in this process or, with many batches, in parallel."""
    first = list(islice(batches, _PARALLEL_MIN_BATCHES))
    workers = min(_MAX_WORKERS, os.cpu_count() or 1)
    if len(first) < _PARALLEL_MIN_BATCHES or workers == 1:
        yield from map(row_tokenizer, first)
        yield from map(row_tokenizer, batches)
        return
    # A forked worker has the tokenizer at once, and does not import the user's main module again.
    context = multiprocessing.get_context("fork" if sys.platform == "linux" else None)
    with warnings.catch_warnings():
        # Python warns of forking a process with threads; the workers use none of them.
        warnings.simplefilter("ignore", DeprecationWarning)
        with ProcessPoolExecutor(
            workers, context, initializer=_init_worker, initargs=(row_tokenizer,)
        ) as pool:
            # Unlike `pool.map`, keep a bounded number of batches in memory.
            pending: list[Future[TokenizedBatch]] = [
                pool.submit(_tokenize_in_worker, batch) for batch in first
            ]
            while pending:
                for batch in islice(batches, 4 * workers - len(pending)):
                    pending.append(pool.submit(_tokenize_in_worker, batch))
                yield pending.pop(0).result()


_worker_tokenizer: RowTokenizer | None = None


def _init_worker(row_tokenizer: RowTokenizer) -> None:
    global _worker_tokenizer
    # There is a worker per core: threads of the tokenizer's own would only compete with them.
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    _worker_tokenizer = row_tokenizer


def _tokenize_in_worker(batch: list[NumberedRow]) -> TokenizedBatch:
    assert _worker_tokenizer is not None
    return _worker_tokenizer(batch)
