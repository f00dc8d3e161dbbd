"""Token lengths of rows, and the suggested `max_length`."""

from __future__ import annotations

from collections import Counter
from itertools import chain, repeat
from pathlib import Path
from typing import Any

import pytest
from policy.conversations import ENDED, INSTRUCTED, PLAYED, TALK
from tiny_tokenizers import of_family, student

from ludus.curation.lint.report import SourceLocation
from ludus.curation.lint.runner import parse_row
from ludus.curation.lint.student import Student, TokenLengths
from ludus.data.training_row import TrainingRow
from ludus.policy.chat.chat_format import find_chat_format_with_fallback
from ludus.policy.chat.rendering import render

ROWS = [TALK, INSTRUCTED, PLAYED, ENDED]


def rows(*columns: dict[str, Any]) -> list[TrainingRow]:
    return [parse_row(each, SourceLocation(Path("rows.jsonl"), 1)) for each in columns]


def test_percentiles() -> None:
    lengths = TokenLengths.from_counts(Counter(range(1, 1001)), "student")
    assert (lengths.count, lengths.p50, lengths.p95, lengths.p99, lengths.max) == (
        1000,
        500,
        950,
        990,
        1000,
    )


@pytest.mark.parametrize(
    ("counts", "advised"),
    [({100: 990, 5000: 10}, 128), ({100: 989, 5000: 11}, 5000), ({500: 1}, 500), ({}, 0)],
)
def test_the_suggested_length_covers_99_percent(counts: dict[int, int], advised: int) -> None:
    assert TokenLengths.from_counts(counts, "student").max_length == advised


@pytest.mark.parametrize("family", ["qwen3", "glm4moe", "llama3", "llama3_2"])
def test_lengths_are_those_of_rendered_rows(family: str) -> None:
    tokenizer = of_family(family)
    template = find_chat_format_with_fallback(tokenizer).template
    sizes = [
        len(render(tokenizer, row["messages"], row.get("tools"), template).ids) for row in ROWS
    ]
    assert Student(family, tokenizer).measure_rows(rows(*ROWS)) == TokenLengths.from_counts(
        Counter(sizes), family
    )


def test_a_pair_is_as_long_as_its_longer_side() -> None:
    prompt, played = PLAYED["messages"][:2], PLAYED["messages"][2:]
    row = {**PLAYED, "prompt": prompt, "chosen": played[:1], "rejected": played}
    del row["messages"]
    tokenizer = of_family("qwen3")
    template = find_chat_format_with_fallback(tokenizer).template
    rejected = render(tokenizer, [*prompt, *played], PLAYED["tools"], template)
    assert Student("qwen3", tokenizer).measure_rows(rows(row)).max == len(rejected.ids)


def test_rows_of_several_batches_are_counted() -> None:
    many = chain(repeat(rows(TALK)[0], 600), rows(PLAYED))
    lengths = Student("qwen3", of_family("qwen3")).measure_rows(many)
    assert lengths.count == 601 and lengths.p99 < lengths.max


def test_refused_rows_are_counted_separately() -> None:
    lengths = Student("cohere2", of_family("cohere2")).measure_rows(rows(TALK, PLAYED, TALK))
    assert (lengths.count, lengths.refused) == (2, 1)


def test_lengths_as_text() -> None:
    lengths = Student("mine", student()).measure_rows(rows(TALK))
    assert "mine" in str(lengths) and "\n" not in str(lengths)
    assert lengths.max_length == lengths.max == lengths.p50
