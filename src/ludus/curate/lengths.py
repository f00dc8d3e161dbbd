"""How long rows are in a student's tokens, and the length that training should allow.

Rows are streamed: what is kept is how often each length came up.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any

from ludus.curate.lint.rows import Row
from ludus.data.spread import allowance, quantile
from ludus.errors import TemplateRefused, TemplateUnmarked
from ludus.policy.dialect import any_dialect
from ludus.policy.templates import written

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_BATCH = 256


@dataclass(frozen=True, slots=True)
class Lengths:
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
    def of(cls, counts: Mapping[int, int], student: str, *, refused: int = 0) -> Lengths:
        """From how often each length came up."""
        longest = max(counts, default=0)
        return cls(
            student=student,
            count=sum(counts.values()),
            p50=quantile(counts, 0.50),
            p95=quantile(counts, 0.95),
            p99=quantile(counts, 0.99),
            max=longest,
            max_length=allowance(counts),
            refused=refused,
        )

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    def __str__(self) -> str:
        spread = f"p50 {self.p50:,}, p95 {self.p95:,}, p99 {self.p99:,}, longest {self.max:,}"
        left_out = f"; {self.refused:,} refused by the template" if self.refused else ""
        return f"tokens of {self.student}: {spread}; --max-length {self.max_length}{left_out}"


def measure(rows: Iterable[Row], tokenizer: PreTrainedTokenizerBase, student: str) -> Lengths:
    """The lengths of all rows; of a pair, that of its longer side.

    Only text is rendered row by row. Tokens are made of many texts at once, which is several
    times faster.
    """
    try:
        template: str | None = any_dialect(tokenizer).template
    except TemplateUnmarked:
        template = None
    counts, refused, rows = Counter[int](), 0, iter(rows)
    while batch := list(islice(rows, _BATCH)):
        texts = [list(_texts(row, tokenizer, template)) for row in batch]
        flat = [text for sides in texts for text in sides]
        sizes = iter(_sizes(flat, tokenizer))
        for sides in texts:
            refused += not sides
            counts.update([max(islice(sizes, len(sides)))] if sides else [])
    return Lengths.of(counts, student, refused=refused)


def _texts(row: Row, tokenizer: PreTrainedTokenizerBase, template: str | None) -> Iterator[str]:
    """The sides of a row as text; none where the template refuses one of them."""
    try:
        yield from [written(tokenizer, side.messages, row.tools, template) for side in row.sides]
    except TemplateRefused:
        return


def _sizes(texts: list[str], tokenizer: PreTrainedTokenizerBase) -> list[int]:
    if not texts:
        return []
    made = tokenizer(texts, add_special_tokens=False, return_attention_mask=False)
    return [len(ids) for ids in made["input_ids"]]
