"""How long rows are, and what length that advises."""

from __future__ import annotations

from collections import Counter
from itertools import chain, repeat
from pathlib import Path
from typing import Any

import pytest
from policy.conversations import ENDED, INSTRUCTED, PLAYED, TALK
from students import of_family, student

from ludus.curation.lint.lint_rows import SourceLocation, TrainingRow, parse_row
from ludus.curation.token_lengths import TokenLengths, measure_rows
from ludus.policy.chat.chat_format import find_chat_format_with_fallback
from ludus.policy.chat.rendering import render, render_pair

ROWS = [TALK, INSTRUCTED, PLAYED, ENDED]


def rows(*columns: dict[str, Any]) -> list[TrainingRow]:
    return [parse_row(each, SourceLocation(Path("rows.jsonl"), 1)) for each in columns]


def test_quantiles_are_lengths_of_rows() -> None:
    found = TokenLengths.from_counts(Counter(range(1, 1001)), "student")
    assert (found.count, found.p50, found.p95, found.p99, found.max) == (1000, 500, 950, 990, 1000)


@pytest.mark.parametrize(
    ("counts", "advised"),
    [({100: 990, 5000: 10}, 128), ({100: 989, 5000: 11}, 5000), ({500: 1}, 500), ({}, 0)],
)
def test_the_advised_length_covers_99_rows_in_100_and_no_more_than_the_longest(
    counts: dict[int, int], advised: int
) -> None:
    assert TokenLengths.from_counts(counts, "student").max_length == advised


@pytest.mark.parametrize("family", ["qwen3", "glm4moe", "llama3", "llama3_2"])
def test_rows_are_as_long_as_they_are_rendered(family: str) -> None:
    tokenizer = of_family(family)
    template = find_chat_format_with_fallback(tokenizer).template
    sizes = [
        len(render(tokenizer, row["messages"], row.get("tools"), template).ids) for row in ROWS
    ]
    assert measure_rows(rows(*ROWS), tokenizer, family) == TokenLengths.from_counts(
        Counter(sizes), family
    )


def test_a_pair_is_as_long_as_its_longer_side() -> None:
    prompt, played = PLAYED["messages"][:2], PLAYED["messages"][2:]
    row = {**PLAYED, "prompt": prompt, "chosen": played[:1], "rejected": played}
    del row["messages"]
    tokenizer = of_family("qwen3")
    template = find_chat_format_with_fallback(tokenizer).template
    pair = render_pair(tokenizer, prompt, played[:1], played, PLAYED["tools"], template)
    assert measure_rows(rows(row), tokenizer, "qwen3").max == len(pair.rejected.ids)


def test_more_rows_than_a_batch_are_all_counted() -> None:
    many = chain(repeat(rows(TALK)[0], 600), rows(PLAYED))
    found = measure_rows(many, of_family("qwen3"), "qwen3")
    assert found.count == 601 and found.p99 < found.max


def test_rows_that_the_template_refuses_are_counted_apart() -> None:
    found = measure_rows(rows(TALK, PLAYED, TALK), of_family("cohere2"), "cohere2")
    assert (found.count, found.refused) == (2, 1)
    assert "1 refused by the template" in str(found)


def test_lengths_are_one_line_and_one_object() -> None:
    found = measure_rows(rows(TALK), student(), "mine")
    assert str(found).startswith("tokens of mine: p50 ") and "\n" not in str(found)
    assert found.as_json()["max_length"] == found.max == found.as_json()["p50"]
