from __future__ import annotations

from typing import Any

import pytest

from ludus.environment.task_buckets import parse_axes
from ludus.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "name", "values"),
    [
        ("max_terms=2..5", "max_terms", (2, 3, 4, 5)),
        ("low = -1 .. 1", "low", (-1, 0, 1)),
        ("size=4,9", "size", (4, 9)),
        ("level=easy, hard", "level", ("easy", "hard")),
        ("rate=0.5,1", "rate", (0.5, 1)),
        ('mixed=easy,2,"3"', "mixed", ("easy", 2, "3")),
        ("digits=[1,2],[3,4]", "digits", ([1, 2], [3, 4])),
        ("on=true,false", "on", (True, False)),
    ],
)
def test_ranges_and_lists(text: str, name: str, values: tuple[Any, ...]) -> None:
    (axis,) = parse_axes([text], option="sweep")
    assert (axis.name, axis.values) == (name, values)


@pytest.mark.parametrize(
    ("texts", "reason"),
    [
        (["max_terms"], "max_terms"),
        (["=2..5"], "form"),
        (["a="], "form"),
        (["a=5..2"], "lower end"),
        (["a=1.5..2"], "whole numbers"),
        (["a=1,,x"], "empty"),
        (["a=1,1"], "twice"),
        (["a=1,2", "a=3,4"], "twice"),
        (["seed=1..3"], "seed"),
        (["a=0..1000000000"], "256"),
        (["a=1..20", "b=1..20"], "400"),
        ("a=1..2", "sequence"),
    ],
)
def test_what_cannot_be_axes_raises(texts: list[str], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason) as caught:
        parse_axes(texts, option="sweep")
    assert "`sweep`" in str(caught.value)
