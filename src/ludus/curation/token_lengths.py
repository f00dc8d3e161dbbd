"""How long rows are in a student's tokens, and the length that training should allow.

Rows are streamed: what is kept is how often each length came up.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from itertools import islice
from typing import TYPE_CHECKING, Any

from ludus.curation.lint.lint_rows import TrainingRow
from ludus.data.length_stats import quantile, suggest_max_length
from ludus.data.tool_schema import JsonObject
from ludus.errors import RequestRefused, TemplateRefused, TemplateUnmarked
from ludus.policy.chat.chat_format import find_chat_format_with_fallback
from ludus.policy.chat.rendering import render_text
from ludus.policy.vision.processor import VisionProcessor
from ludus.policy.vision.row_images import (
    ContentPartError,
    has_images,
    image_urls,
    to_text_messages,
)

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_BATCH_ROWS = 256


@dataclass(frozen=True, slots=True)
class TokenLengths:
    """Rows by their number of tokens."""

    student: str
    count: int
    p50: int
    p95: int
    p99: int
    max: int
    max_length: int
    """Allow this much: it cuts off one row in a hundred at most, and does not pay for the few
    longest. Never more than the longest row."""
    refused: int = 0
    """Rows that the student's template does not take; they have no length."""

    @classmethod
    def from_counts(
        cls, counts: Mapping[int, int], student: str, *, refused: int = 0
    ) -> TokenLengths:
        """From how often each length came up."""
        longest = max(counts, default=0)
        return cls(
            student=student,
            count=sum(counts.values()),
            p50=quantile(counts, 0.50),
            p95=quantile(counts, 0.95),
            p99=quantile(counts, 0.99),
            max=longest,
            max_length=suggest_max_length(counts),
            refused=refused,
        )

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    def __str__(self) -> str:
        spread = f"p50 {self.p50:,}, p95 {self.p95:,}, p99 {self.p99:,}, longest {self.max:,}"
        left_out = f"; {self.refused:,} refused by the template" if self.refused else ""
        return f"tokens of {self.student}: {spread}; --max-length {self.max_length}{left_out}"


def measure_rows(
    rows: Iterable[TrainingRow],
    tokenizer: PreTrainedTokenizerBase,
    student: str,
    *,
    load_processor: Callable[[], VisionProcessor | None] = lambda: None,
) -> TokenLengths:
    """The lengths of all rows; of a pair, that of its longer side.

    Only text is rendered row by row. Tokens are made of many texts at once, which is several
    times faster. `eyes` is asked once, where rows have images.
    """
    load_processor = cache(load_processor)
    try:
        template: str | None = find_chat_format_with_fallback(tokenizer).template
    except TemplateUnmarked:
        template = None
    counts, refused, rows = Counter[int](), 0, iter(rows)
    while batch := list(islice(rows, _BATCH_ROWS)):
        texts = [list(_render_sides(row, tokenizer, template, load_processor)) for row in batch]
        flat = [text for sides in texts for text, _ in sides]
        sizes = iter(_count_tokens(flat, tokenizer))
        for sides in texts:
            refused += not sides
            lengths = [next(sizes) + more for _, more in sides]
            counts.update([max(lengths)] if sides else [])
    return TokenLengths.from_counts(counts, student, refused=refused)


def _render_sides(
    row: TrainingRow,
    tokenizer: PreTrainedTokenizerBase,
    template: str | None,
    load_processor: Callable[[], VisionProcessor | None],
) -> Iterator[tuple[str, int]]:
    """The sides of a row as text, and how many tokens their images add to it; none where the
    template or the student's eyes refuse one of them."""
    try:
        sides = [_render_images(side.messages, load_processor) for side in row.conversations]
        yield from [
            (render_text(tokenizer, talk, row.tools, template), more) for talk, more in sides
        ]
    except (TemplateRefused, RequestRefused, ContentPartError):
        return


def _render_images(
    messages: Sequence[JsonObject], load_processor: Callable[[], VisionProcessor | None]
) -> tuple[Sequence[JsonObject], int]:
    """Messages as text, with a token for each image, and how many tokens the images add to that."""
    if not has_images(messages) or (student := load_processor()) is None:
        return messages, 0
    more = sum(student.num_image_tokens(url) - 1 for url in image_urls(messages))
    return to_text_messages(messages, student), more


def _count_tokens(texts: list[str], tokenizer: PreTrainedTokenizerBase) -> list[int]:
    if not texts:
        return []
    made = tokenizer(texts, add_special_tokens=False, return_attention_mask=False)
    return [len(ids) for ids in made["input_ids"]]
