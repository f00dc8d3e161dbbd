"""Token lengths of rows, and the suggested `max_length`."""

from __future__ import annotations

from collections import Counter

import pytest

from ludus.curation.lint.student import TokenLengths


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


def test_lengths_as_text() -> None:
    lengths = TokenLengths.from_counts({100: 3}, "mine", refused=1)
    assert str(lengths).startswith("tokens of mine: p50 100") and "1 refused" in str(lengths)
