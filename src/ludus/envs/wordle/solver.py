"""A solver that uses only the word list and the marks so far; deterministic.

It evaluates a short list of guesses against a sample of the possible secrets, so that a move takes
a few milliseconds. It is good, but not optimal.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from ludus.envs.wordle.feedback import GREEN, MISS, mark_guess

_MAX_SCANNED = 2000
"""Words from which the short list is chosen."""
_SHORTLIST_SIZE = 10
_SAMPLE_SIZE = 50
_MAX_CANDIDATES_FOR_PROBES = 300
"""With more candidates than this, only guesses that may be the secret are considered."""


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
    scanned = _subsample_words(possible, _MAX_SCANNED)
    having = Counter(letter for word in scanned for letter in set(word))
    # How well each letter splits the words: best if half have it, zero if all or none have it.
    letter_scores = Counter({letter: n * (len(scanned) - n) for letter, n in having.items()})
    # Candidates come first: `min` then prefers a guess that may win among equally good ones.
    guesses = _shortlist_guesses(possible, letter_scores)
    if len(possible) <= _MAX_CANDIDATES_FOR_PROBES:
        guesses += _shortlist_guesses(probes, letter_scores)
    sample = _subsample_words(possible, _SAMPLE_SIZE)
    return min(guesses, key=lambda guess: _expected_remaining(guess, sample))


def consistent_candidates(candidates: Iterable[str], marked: Mapping[str, str]) -> list[str]:
    """The candidates that would have given exactly these marks."""
    possible = list(candidates)
    for guess, marks in marked.items():
        fits = _feedback_pattern(guess, marks).fullmatch
        possible = [word for word in possible if fits(word) and mark_guess(guess, word) == marks]
    return possible


def _feedback_pattern(guess: str, marks: str) -> re.Pattern[str]:
    """A regular expression of what the marks say per position: a cheap test for most words."""
    pairs = list(zip(guess, marks, strict=True))
    present = {letter for letter, each in pairs if each != MISS}
    absent = "".join(sorted(set(guess) - present))
    return re.compile(
        "".join(letter if each == GREEN else f"[^{letter}{absent}]" for letter, each in pairs)
    )


def _shortlist_guesses(words: Sequence[str], letter_scores: Counter[str]) -> list[str]:
    def score(word: str) -> int:
        return sum([letter_scores[letter] for letter in set(word)])

    return sorted(_subsample_words(words, _MAX_SCANNED), key=score, reverse=True)[:_SHORTLIST_SIZE]


def _subsample_words(words: Sequence[str], limit: int) -> Sequence[str]:
    """At most `limit` of the words, evenly spaced."""
    return words[:: -(-len(words) // limit) or 1]


def _expected_remaining(guess: str, sample: Iterable[str]) -> int:
    """Proportional to the expected number of candidates after a guess."""
    groups = Counter(mark_guess(guess, word) for word in sample)
    return sum(size * size for size in groups.values())
