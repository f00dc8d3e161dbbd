"""The word lists, which are read when a length is first used.

`words/COPYRIGHT` has their sources and licences. Slurs and crude words are valid guesses, but never
answers, because a model is made to write the answer.
"""

from __future__ import annotations

from functools import cache, cached_property
from importlib.resources import files
from typing import Literal
from zlib import crc32

Pool = Literal["train", "test", "all"]

LENGTHS = range(4, 9)
"""The lengths that have word lists; the lists of other lengths are empty."""


class WordList(tuple[str, ...]):
    """Words that are hashed once: the solver looks up its index by them in every turn."""

    @cached_property
    def _hash(self) -> int:
        return super().__hash__()

    def __hash__(self) -> int:
        return self._hash


@cache
def answers(length: int) -> tuple[str, ...]:
    """The common words of a length, sorted, from which secrets are drawn."""
    return _read_word_list("answers", length)


@cache
def secrets(length: int, pool: Pool) -> tuple[str, ...]:
    """The answers of a pool: for testing one in ten, by their checksums, and the rest for training.

    A word keeps its pool when others are added or removed.
    """
    if pool == "all":
        return answers(length)
    test = pool == "test"
    return tuple(word for word in answers(length) if (crc32(word.encode()) % 10 == 0) == test)


@cache
def guesses(length: int) -> frozenset[str]:
    """The words of a length that are accepted as a guess, including all answers."""
    return frozenset(_read_word_list("guesses", length))


def _read_word_list(name: str, length: int) -> WordList:
    if length not in LENGTHS:
        return WordList()
    file = files(__package__).joinpath("words", f"{name}-{length}.txt")
    return WordList(file.read_text(encoding="ascii").split())
