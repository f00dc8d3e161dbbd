"""Sets of words as integers, one bit per word.

Filtering thousands of words takes a few `&` then, instead of a loop over the words.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence

from ludus.envs.wordle.feedback import GREEN, MISS


class WordIndex:
    """The words of a list by their letters. Bit i of a set is set if it has word i of the list."""

    def __init__(self, words: Sequence[str]) -> None:
        self.words = words
        self.all_words = (1 << len(words)) - 1
        self._with_letter_at: defaultdict[tuple[int, str], int] = defaultdict(int)
        """Words that have a letter at a position."""
        self._with_letter_count: defaultdict[tuple[str, int], int] = defaultdict(int)
        """Words that have a letter at least so many times."""
        for number, word in enumerate(words):
            for position, letter in enumerate(word):
                self._with_letter_at[position, letter] |= 1 << number
                self._with_letter_count[letter, word.count(letter, 0, position + 1)] |= 1 << number

    def consistent_words(self, marked: Mapping[str, str]) -> int:
        """The words for which these guesses get exactly these marks."""
        possible = self.all_words
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
