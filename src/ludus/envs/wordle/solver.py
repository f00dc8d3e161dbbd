"""A solver that uses only the word list and the marks so far.

It evaluates a short list of guesses, so that a move takes less than a millisecond. It is good, but
not optimal.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache

from ludus.envs.wordle.word_index import WordIndex

_SHORTLIST_SIZE = 10
_MAX_LETTER_SCORE = 63
_MAX_CANDIDATES_FOR_PROBES = 300
"""With more candidates than this, only guesses that may be the secret are considered."""


def next_guess(
    marked: Mapping[str, str],
    candidates: Sequence[str],
    probes: Sequence[str] = (),
    rng: random.Random | None = None,
    *,
    hard_mode: bool = False,
) -> str:
    """The guess that is expected to leave the fewest candidates.

    `marked` holds the earlier guesses and their marks. `probes` are words that may be guessed
    without being candidates: where a few candidates differ in one letter only, such a word can
    try several of these letters at once. `rng` picks among equally good guesses, and among the
    best openings, which differ little; without it the first is taken. In `hard_mode` every guess
    is a candidate.
    """
    index, is_candidate = _word_index(_as_key(candidates), _as_key(probes))
    possible = index.consistent_words(marked) & is_candidate
    guesses = _rank_guesses(index, possible, candidates_only=hard_mode)
    if rng is None:
        return guesses[0][1]
    if marked:
        guesses = [each for each in guesses if each[0] == guesses[0][0]]
    return rng.choice(guesses)[1]


def consistent_candidates(candidates: Iterable[str], marked: Mapping[str, str]) -> list[str]:
    """The candidates that would have given exactly these marks."""
    index, _ = _word_index(_as_key(candidates), ())
    return index.list_words(index.consistent_words(marked))


def count_candidates(candidates: Iterable[str], marked: Mapping[str, str]) -> int:
    """The number of `consistent_candidates`."""
    index, _ = _word_index(_as_key(candidates), ())
    return index.consistent_words(marked).bit_count()


def _as_key(words: Iterable[str]) -> tuple[str, ...]:
    return words if isinstance(words, tuple) else tuple(words)


@lru_cache(maxsize=16)
def _word_index(candidates: tuple[str, ...], probes: tuple[str, ...]) -> tuple[WordIndex, int]:
    """An index of all candidates and probes, and the set of the candidates."""
    words = tuple(dict.fromkeys(candidates + probes))
    return WordIndex(words), (1 << len(set(candidates))) - 1


@lru_cache(maxsize=1 << 14)
def _rank_guesses(
    index: WordIndex, possible: int, *, candidates_only: bool
) -> list[tuple[int, str]]:
    """Guesses with their score, best first: lower is better."""
    if (count := possible.bit_count()) <= 2:
        return [(0, word) for word in index.list_words(possible)]
    # How well each letter splits the words: best if half have it, zero if all or none have it.
    splits = {letter: n * (count - n) for letter, n in index.count_letters(possible).items()}
    unit = max(1.0, max(splits.values()) / _MAX_LETTER_SCORE)
    letter_scores = {letter: round(split / unit) for letter, split in splits.items() if split}
    shortlist = index.top_words(possible, letter_scores, _SHORTLIST_SIZE)
    if count <= _MAX_CANDIDATES_FOR_PROBES and not candidates_only:
        shortlist |= index.top_words(index.all_words, letter_scores, _SHORTLIST_SIZE)
    guesses = []
    for number in index.numbers(shortlist):
        word = index.words[number]
        parts = index.split_by_marks(possible, word)
        # Proportional to the expected number of candidates after the guess, which may win itself.
        remaining = sum(part.bit_count() ** 2 for part in parts) - (possible >> number & 1)
        guesses.append((remaining, word))
    return sorted(guesses)
