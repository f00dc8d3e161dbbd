"""Lengths of rows in a student's tokens, and the `max_length` that they suggest.

Rows are streamed; only a histogram of lengths is kept.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from ludus.curation.lint.lint_rows import parse_lint_row, read_lint_rows
from ludus.data.tool_schema import JsonObject
from ludus.data.training_row import TrainingRow, quantile, suggest_max_length
from ludus.errors import RequestRefused, TemplateRefused, TemplateUnmarked
from ludus.policy.chat.chat_format import find_chat_format_with_fallback
from ludus.policy.chat.rendering import render_text
from ludus.policy.vision.processor import VisionProcessor
from ludus.policy.vision.training_images import (
    ContentPartError,
    row_has_images,
    separate_images,
)

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_BATCH_ROWS = 256
_PROGRESS_INTERVAL_ROWS = 100


@dataclass(frozen=True, slots=True)
class TokenLengths:
    """Percentiles of the number of tokens per row."""

    student: str
    count: int
    p50: int
    p95: int
    p99: int
    max: int
    max_length: int
    """Suggested `max_length` for training: at most 1 % of the rows are longer, and a few outliers
    do not raise it."""
    refused: int = 0
    """Rows that the student's template refuses, which have no length."""

    @classmethod
    def from_counts(
        cls, counts: Mapping[int, int], student: str, *, refused: int = 0
    ) -> TokenLengths:
        """Build from the number of rows by length."""
        return cls(
            student=student,
            count=sum(counts.values()),
            p50=quantile(counts, 0.50),
            p95=quantile(counts, 0.95),
            p99=quantile(counts, 0.99),
            max=max(counts, default=0),
            max_length=suggest_max_length(counts),
            refused=refused,
        )

    def as_json(self) -> JsonObject:
        return asdict(self)

    def __str__(self) -> str:
        lengths = f"p50 {self.p50:,}, p95 {self.p95:,}, p99 {self.p99:,}, max {self.max:,}"
        refused = f"; {self.refused:,} refused by the template" if self.refused else ""
        return f"tokens of {self.student}: {lengths}; max_length {self.max_length}{refused}"


def measure_file(
    file: Path,
    tokenizer: PreTrainedTokenizerBase,
    student: str,
    *,
    load_processor: Callable[[], VisionProcessor | None] = lambda: None,
    progress: Callable[[int], None] = lambda rows: None,
) -> TokenLengths:
    """Measure all rows of a JSONL file; `progress` is called with the number of rows so far."""

    def read_rows() -> Iterator[TrainingRow]:
        for number, (location, columns) in enumerate(read_lint_rows(file)):
            if number % _PROGRESS_INTERVAL_ROWS == 0:
                progress(number)
            yield parse_lint_row(columns, location)

    return measure_rows(read_rows(), tokenizer, student, load_processor=load_processor)


def measure_rows(
    rows: Iterable[TrainingRow],
    tokenizer: PreTrainedTokenizerBase,
    student: str,
    *,
    load_processor: Callable[[], VisionProcessor | None] = lambda: None,
) -> TokenLengths:
    """Measure all rows; a pair counts as long as its longer side.

    Rows are rendered one by one but tokenized in batches, which is several times faster.
    `load_processor` is called once, at the first row with images.
    """
    load_processor = cache(load_processor)
    try:
        template: str | None = find_chat_format_with_fallback(tokenizer).template
    except TemplateUnmarked:
        template = None
    counts, refused, remaining = Counter[int](), 0, iter(rows)
    while batch := list(islice(remaining, _BATCH_ROWS)):
        rendered = [_render_row(row, tokenizer, template, load_processor) for row in batch]
        texts = [text for conversations in rendered for text, _ in conversations]
        token_ids = (
            tokenizer(texts, add_special_tokens=False, return_attention_mask=False)["input_ids"]
            if texts
            else []
        )
        sizes = map(len, token_ids)
        for conversations in rendered:
            if conversations:
                counts[max(next(sizes) + image_tokens for _, image_tokens in conversations)] += 1
            else:
                refused += 1
    return TokenLengths.from_counts(counts, student, refused=refused)


def _render_row(
    row: TrainingRow,
    tokenizer: PreTrainedTokenizerBase,
    template: str | None,
    load_processor: Callable[[], VisionProcessor | None],
) -> list[tuple[str, int]]:
    """Render each conversation as text, with the number of tokens that its images add to it.

    Empty if the template or the image processor refuses one of them.
    """
    rendered = []
    try:
        for conversation in row.conversations:
            messages: Sequence[JsonObject] = conversation.messages
            image_tokens = 0
            if row_has_images(messages) and (processor := load_processor()) is not None:
                # In the text, each image is a single placeholder token.
                messages, urls = separate_images(messages, processor)
                image_tokens = sum(map(processor.num_image_tokens, urls)) - len(urls)
            rendered.append((render_text(tokenizer, messages, row.tools, template), image_tokens))
    except (TemplateRefused, RequestRefused, ContentPartError):
        return []
    return rendered
