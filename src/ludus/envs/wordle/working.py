"""What the marks say about the secret word, in a form that makes the next guess easy to find.

It is written for small language models: letters stand alone, as in the replies of the environment,
because a tokenizer merges the letters of a word; and what follows from several marks is said once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from ludus.envs.wordle.feedback import GREEN, MISS

_UNKNOWN = "_"


def write_working(marked: Mapping[str, str], guess: str) -> str:
    """What is known before a guess, and the guess: four lines.

    Known: the letters by place. In: letters that belong to the unknown places, each with the places
    where it may stand, from 1. Out: letters that stand at none of the unknown places. Letters keep
    the order in which they were found, so that a line extends the same line of the turn before.
    """
    pattern = [_UNKNOWN] * len(guess)
    required: Counter[str] = Counter()
    missed: list[str] = []
    for word, marks in marked.items():
        pairs = list(zip(word, marks, strict=True))
        required |= Counter(letter for letter, mark in pairs if mark != MISS)
        missed += [letter for letter, mark in pairs if mark == MISS]
        for place, (letter, mark) in enumerate(pairs):
            if mark == GREEN:
                pattern[place] = letter
    unplaced = required - Counter(pattern)
    present = []
    for letter in unplaced.elements():
        places = [
            str(place + 1)
            for place, known in enumerate(pattern)
            if known == _UNKNOWN and all(word[place] != letter for word in marked)
        ]
        present.append(" ".join((letter.upper(), *places)))
    absent = [letter for letter in dict.fromkeys(missed) if letter not in unplaced]
    return "\n".join(
        (
            f"Known: {_spell(pattern)}",
            f"In: {', '.join(present) or '-'}",
            f"Out: {_spell(absent) or '-'}",
            f"Word: {_spell(guess)}",
        )
    )


def _spell(letters: Iterable[str]) -> str:
    return " ".join(letters).upper()
