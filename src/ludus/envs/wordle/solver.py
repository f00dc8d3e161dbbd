"""Marks, and a solver that uses only the word list and the marks so far.

It evaluates a short list of guesses, so that a move takes less than a millisecond. It is good, but
not optimal.
"""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache

GREEN, YELLOW, MISS = "G", "Y", "X"


def mark_guess(guess: str, secret: str) -> str:
    """Mark every letter of the guess, for example `mark("speed", "abide") == "XXYXY"`.

    A letter is marked as often as the secret has it: first where it is in place, then from the
    left. Both words have the same length.
    """
    pairs = list(zip(guess, secret, strict=True))
    unmatched = [actual for guessed, actual in pairs if guessed != actual]
    marks = ""
    for guessed, actual in pairs:
        if guessed == actual:
            marks += GREEN
        elif guessed in unmatched:
            unmatched.remove(guessed)
            marks += YELLOW
        else:
            marks += MISS
    return marks


_SHORTLIST_SIZE = 10
_MAX_LETTER_SCORE = 63
_MAX_CANDIDATES_FOR_PROBES = 300
"""With more candidates than this, only guesses that may be the secret are considered."""


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


class WordIndex:
    """The words of a list by their letters. Bit i of a set is set if it has word i of the list.

    The secret is one of the candidates. Probes are words that may be guessed without being one: if
    a few candidates differ in one letter only, such a word can try several of these letters at
    once.
    """

    def __init__(self, candidates: Sequence[str], probes: Sequence[str] = ()) -> None:
        self.words = words = tuple(dict.fromkeys((*candidates, *probes)))
        self.all_words = (1 << len(words)) - 1
        self._candidates = (1 << len(set(candidates))) - 1
        self._with_letter_at: defaultdict[tuple[int, str], int] = defaultdict(int)
        """Words that have a letter at a position."""
        self._with_letter_count: defaultdict[tuple[str, int], int] = defaultdict(int)
        """Words that have a letter at least so many times."""
        for number, word in enumerate(words):
            for position, letter in enumerate(word):
                self._with_letter_at[position, letter] |= 1 << number
                self._with_letter_count[letter, word.count(letter, 0, position + 1)] |= 1 << number

    def consistent_words(self, marked: Mapping[str, str]) -> int:
        """The candidates for which these guesses get exactly these marks."""
        possible = self._candidates
        for guess, marks in marked.items():
            known: Counter[str] = Counter()
            missed = set()
            for position, (letter, mark) in enumerate(zip(guess, marks, strict=True)):
                words = self._with_letter_at.get((position, letter), 0)
                possible &= words if mark == GREEN else ~words
                if mark == MISS:
                    missed.add(letter)
                else:
                    known[letter] += 1
            for letter, count in known.items():
                possible &= self._with_letter_count.get((letter, count), 0)
            for letter in missed:
                possible &= ~self._with_letter_count.get((letter, known[letter] + 1), 0)
        return possible

    def next_guess(
        self,
        marked: Mapping[str, str],
        rng: random.Random | None = None,
        *,
        hard_mode: bool = False,
    ) -> str:
        """The guess that is expected to leave the fewest candidates.

        `marked` holds the earlier guesses and their marks. `rng` picks among equally good guesses,
        and among the best openings, which differ little; without it the first is taken. In
        `hard_mode` every guess is a candidate.
        """
        possible = self.consistent_words(marked)
        guesses = _rank_guesses(self, possible, candidates_only=hard_mode)
        if rng is None:
            return guesses[0][1]
        if marked:
            guesses = [each for each in guesses if each[0] == guesses[0][0]]
        return rng.choice(guesses)[1]

    def split_by_marks(self, words: int, guess: str) -> list[int]:
        """Split a set into those subsets in which a guess gets the same marks.

        Two words give the same marks if they agree on where they have the letters of the guess,
        and on how often, up to how often the guess has them.
        """
        parts = [words]
        for position, letter in enumerate(guess):
            count = guess.count(letter, 0, position + 1)
            for criterion in (
                self._with_letter_at.get((position, letter), 0),
                self._with_letter_count.get((letter, count), 0),
            ):
                halves = []
                for part in parts:
                    if inside := part & criterion:
                        halves.append(inside)
                    if inside != part:
                        halves.append(part ^ inside)
                parts = halves
        return parts

    def count_letters(self, words: int) -> dict[str, int]:
        """How many words of a set have each letter."""
        return {
            letter: (words & with_letter).bit_count()
            for (letter, count), with_letter in self._with_letter_count.items()
            if count == 1
        }

    def top_words(self, words: int, letter_scores: Mapping[str, int], limit: int) -> int:
        """The words of a set whose letters have the highest sum of scores, each counted once."""
        # The sums of all words are computed at once: bit i of planes[k] is bit k of the sum of
        # word i, and adding a score is a ripple-carry addition.
        planes: list[int] = []
        for letter, score in letter_scores.items():
            for bit in range(score.bit_length()):
                carry = words & self._with_letter_count.get((letter, 1), 0)
                carry = carry if score >> bit & 1 else 0
                while carry:
                    planes += [0] * (bit + 1 - len(planes))
                    planes[bit], carry = planes[bit] ^ carry, planes[bit] & carry
                    bit += 1
        top, undecided = 0, words
        for plane in reversed(planes):
            higher = undecided & plane
            if (top | higher).bit_count() <= limit:
                top |= higher
                undecided ^= higher
            else:
                undecided = higher
        for number in self.numbers(undecided):
            if top.bit_count() >= limit:
                break
            top |= 1 << number
        return top

    def list_words(self, words: int) -> list[str]:
        """The words of a set, in the order of the list."""
        return [self.words[number] for number in self.numbers(words)]

    @staticmethod
    def numbers(words: int) -> Iterator[int]:
        """The positions of the words of a set in the list."""
        while words:
            lowest = words & -words
            yield lowest.bit_length() - 1
            words ^= lowest


def write_working(marked: Mapping[str, str], guess: str) -> str:
    """Write what is known of the word, and the guess, in four lines for small language models.

    Letters stand alone, as in the replies of the environment, because a tokenizer merges the
    letters of a word; and what follows from several marks is said once.

    Known: the letters by place. In: letters that belong to the unknown places, each with the places
    where it may stand, from 1. Out: letters that stand at none of the unknown places. Letters keep
    the order in which they were found, so that a line extends the same line of the turn before.
    """
    pattern = ["_"] * len(guess)
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
            if known == "_" and all(word[place] != letter for word in marked)
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
