"""The word lists, read when a length is first played.

Where they come from, and under which licence, stands in `words/COPYRIGHT`. Slurs and crude words
are no answers, because a model is made to say the answer; as guesses they are words like others.
"""

from __future__ import annotations

from functools import cache
from importlib.resources import files

LENGTHS = range(4, 9)
"""The lengths for which there are lists; other lengths have empty ones."""


@cache
def answers(length: int) -> tuple[str, ...]:
    """The common words of this length, sorted: those that may be the secret."""
    return _read("answers", length)


@cache
def guesses(length: int) -> frozenset[str]:
    """The words of this length that are accepted as a guess; all the answers are among them."""
    return frozenset(_read("guesses", length))


def _read(name: str, length: int) -> tuple[str, ...]:
    if length not in LENGTHS:
        return ()
    file = files(__package__).joinpath("words", f"{name}-{length}.txt")
    return tuple(file.read_text(encoding="ascii").split())
