"""A player that knows the word list and the marks so far, and nothing else.

Pure functions, deterministic. The bounds keep a move within a few milliseconds, so the player is
good and not optimal: it weighs a short list of guesses against a sample of the possible secrets.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from ludus.envs.wordle.feedback import GREEN, MISS, mark_guess

_MAX_SCANNED = 2000
"""How many words are looked at to draw up a short list."""
_SHORTLIST_SIZE = 10
_SAMPLE_SIZE = 50
_MAX_CANDIDATES_FOR_PROBES = 300
"""From how many candidates on a guess that cannot win is not worth considering."""


def next_guess(
    marked: Mapping[str, str], candidates: Sequence[str], probes: Sequence[str] = ()
) -> str:
    """The guess that is expected to leave the fewest candidates.

    `marked` holds the earlier guesses and their marks. `probes` are words that may be guessed
    without being candidates: where a few candidates differ in one letter only, such a word can
    try several of these letters at once.
    """
    possible = consistent_candidates(candidates, marked)
    if len(possible) <= 2:
        return possible[0]
    worth = _letter_scores(_subsample(possible, _MAX_SCANNED))
    # Candidates come first, so that of two equally good guesses the one that may win is made.
    guesses = _shortlist(possible, worth)
    if len(possible) <= _MAX_CANDIDATES_FOR_PROBES:
        guesses += _shortlist(probes, worth)
    sample = _subsample(possible, _SAMPLE_SIZE)
    return min(guesses, key=lambda guess: _expected_remaining(guess, sample))


def consistent_candidates(candidates: Iterable[str], marked: Mapping[str, str]) -> list[str]:
    """The candidates that would have given exactly these marks."""
    possible = list(candidates)
    for guess, marks in marked.items():
        fits = _pattern(guess, marks).fullmatch
        possible = [word for word in possible if fits(word) and mark_guess(guess, word) == marks]
    return possible


def _pattern(guess: str, marks: str) -> re.Pattern[str]:
    """What the marks say about single places: cheap to test, and enough for most words."""
    pairs = list(zip(guess, marks, strict=True))
    found = {letter for letter, each in pairs if each != MISS}
    absent = "".join(sorted(set(guess) - found))
    return re.compile(
        "".join(letter if each == GREEN else f"[^{letter}{absent}]" for letter, each in pairs)
    )


def _letter_scores(possible: Sequence[str]) -> Counter[str]:
    """How well each letter divides the words: best if half have it, worthless if all or none do."""
    having = Counter(letter for word in possible for letter in set(word))
    return Counter({letter: n * (len(possible) - n) for letter, n in having.items()})


def _shortlist(words: Sequence[str], worth: Counter[str]) -> list[str]:
    def promise(word: str) -> int:
        return sum([worth[letter] for letter in set(word)])

    return sorted(_subsample(words, _MAX_SCANNED), key=promise, reverse=True)[:_SHORTLIST_SIZE]


def _subsample(words: Sequence[str], limit: int) -> Sequence[str]:
    """At most so many of the words, evenly spread."""
    return words[:: -(-len(words) // limit) or 1]


def _expected_remaining(guess: str, sample: Iterable[str]) -> int:
    """Proportional to the number of candidates that this guess leaves on average."""
    groups = Counter(mark_guess(guess, word) for word in sample)
    return sum(size * size for size in groups.values())
