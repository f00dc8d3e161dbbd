"""Wordle: find a secret word from what earlier guesses had in common with it.

`words/COPYRIGHT` has the sources and licences of the word lists, which are read when a length is
first used. Slurs and crude words are valid guesses, but never answers, because a model is made to
write the answer.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from functools import cache, lru_cache
from importlib.resources import files
from typing import Literal

from pydantic import Field

from ludus.client.env_client import EnvClient
from ludus.data.tool_schema import JsonObject, ToolCall
from ludus.environment.task_splits import key_digest, split_of
from ludus.environment.tool_environment import ToolEnvironment
from ludus.environment.tools import tool
from ludus.envs.wordle.solver import GREEN, YELLOW, WordIndex, mark_guess, write_working
from ludus.protocol.types import Action, State, TextObservation


class WordleAction(Action):
    """Guess the secret word."""

    word: str = Field(description="The word that you guess, for example: crane.")


class WordleObservation(TextObservation):
    """The rules, or the marks of the last guess, in `text`."""


class WordleEnv(EnvClient[WordleAction, WordleObservation, State]):
    """A typed client for a wordle server."""


_RULES = """\
Find the secret word. It has {length} letters.
Each guess is answered with a mark under every letter:
G: the letter is in the word, at this place.
Y: the letter is in the word, at another place.
X: the letter is not in the word, or the word has no more of it.
A guess that is not a word with {length} letters, or that was made before, still counts as a guess.
Finding the word scores 1. Otherwise your best guess scores up to 0.4 for its letters marked G and \
up to 0.1 for those marked Y.
Guesses left: {turns}"""


class Wordle(ToolEnvironment):
    """Find a secret word; every guess tells which letters were right.

    Tools:
        guess(word): guesses a word; case, blanks around it and brackets (`[crane]`) do not matter,
            and its letters may stand alone (`C R A N E`).
    Observation:
        The rules; then the letters of the guess over their marks, `G` (right place), `Y` (in the
        word, elsewhere) or `X` (not in the word), and how many guesses are left.
        A guess that has the wrong length, is not in the word list or was made before costs a turn
        like any other, and the answer says what was wrong with it.
    Reward:
        1.0 for the word. Without it, at the end, 0.4 times the fraction of green letters plus
        0.1 times the fraction of yellow ones in the best guess, so always less than 0.5.
        Its parts: `solved`, and `greens` and `yellows`, the fractions in the best guess.
    Episode end:
        The word is found, or `max_turns` guesses are made; then the word is told.
    Task arguments:
        seed: picks the word.
        pool: the words to pick from: `train`, `test` (one in eight words) or `all` (the default).
            The splits draw from their pools.
        length: how many letters the word has (5), from 4 to 8.
        max_turns: how many guesses there are (6).
        words: what to pick from instead of the common words; all of one length, which replaces
            `length`. They are accepted as guesses, beside the word list of that length, if any.
    """

    def get_task(self, split: str, index: int) -> JsonObject:
        return {**super().get_task(split, index), "pool": split}

    def reset(
        self,
        *,
        seed: int | None = None,
        pool: Pool = "all",
        length: int = 5,
        max_turns: int = 6,
        words: list[str] | None = None,
    ) -> str:
        if max_turns < 1:
            raise ValueError(f"max_turns must be positive, got {max_turns}.")
        if words is not None:
            if not words:
                raise ValueError("words is empty: give at least one, or leave it out.")
            for word in words:
                if not _is_word(word):
                    raise ValueError(f"words must have the letters a to z only, got {word!r}.")
            if len(lengths := sorted({len(word) for word in words})) > 1:
                raise ValueError(f"words must all have the same length, got lengths {lengths}.")
            # Sorted, so that their order does not matter.
            self.candidates = choices = tuple(sorted({word.lower() for word in words}))
        elif length in LENGTHS:
            self.candidates = answers(length)
            choices = secrets(length, pool)
        else:
            raise ValueError(
                f"length must be between {LENGTHS[0]} and {LENGTHS[-1]}, got {length}; "
                "give `words` for other lengths."
            )
        self.secret = random.Random(seed).choice(choices)
        self.length = len(self.secret)
        self._index = word_index(self.length, None if words is None else self.candidates)
        self.max_turns = self.turns_left = max_turns
        self.marked: dict[str, str] = {}
        return _RULES.format(length=self.length, turns=max_turns)

    @tool
    def guess(self, word: str) -> str:
        """Guess the secret word.

        Args:
            word: The word that you guess, for example: crane.
        """
        word = word.strip().strip("[]").strip().lower()
        if all(len(part) == 1 for part in word.split()):
            word = "".join(word.split())
        self.turns_left -= 1
        objection = ""
        if not _is_word(word):
            objection = "A guess is one word, with letters from a to z only."
        elif len(word) != self.length:
            objection = (
                f"The secret word has {self.length} letters, and your guess has {len(word)}."
            )
        elif word not in guesses(self.length) and word not in self.candidates:
            objection = f"{word.upper()} is not in the word list."
        elif word in self.marked:
            objection = f"You have guessed {word.upper()} before."
        if objection:
            return self._reply(f"{objection} This still counts as a guess.")
        marks = self.marked[word] = mark_guess(word, self.secret)
        picture = f"{' '.join(word.upper())}\n{' '.join(marks)}"
        if word == self.secret:
            return self.finish(
                1.0, f"{picture}\nYou found the word.", solved=1.0, greens=1.0, yellows=0.0
            )
        return self._reply(picture)

    def oracle(self, *, rng: random.Random | None = None, working: bool = False) -> ToolCall:
        """The next guess of the solver; only the last guess uses the secret word.

        With `working`, it says what is known, and each guess fits it: a guess that cannot be the
        secret may tell more, but does not follow from what is known.
        """
        word = self.secret
        if self.turns_left > 1:
            word = self._index.next_guess(self.marked, rng, hard_mode=working)
        text = write_working(self.marked, word) if working else ""
        return ToolCall(name="guess", arguments={"word": word}, text=text)

    def random_action(self, rng: random.Random) -> ToolCall:
        """A word that was not guessed before; half of the time one that fits the marks so far."""
        words: Sequence[str] = self.candidates
        if self.marked and rng.random() < 0.5:
            words = self._index.list_words(self._index.consistent_words(self.marked))
        while (word := rng.choice(words)) in self.marked:
            pass
        return ToolCall(name="guess", arguments={"word": word})

    def task_key(self) -> str:
        return self.secret

    def progress(self) -> float:
        """The fraction of information, in bits, that the guesses have brought: 1 for the word."""
        if self.secret in self.marked:
            return 1.0
        count = self._index.consistent_words(self.marked).bit_count()
        return 1.0 - math.log1p(count) / math.log1p(len(self.candidates))

    def _reply(self, text: str) -> str:
        if self.turns_left > 0:
            return f"{text}\nGuesses left: {self.turns_left}"
        # The partial credit of the best guess, and its fractions of green and yellow letters.
        fractions = [
            (marks.count(GREEN) / self.length, marks.count(YELLOW) / self.length)
            for marks in self.marked.values()
        ]
        credits = [(0.4 * greens + 0.1 * yellows, greens, yellows) for greens, yellows in fractions]
        reward, greens, yellows = max(credits, default=(0.0, 0.0, 0.0))
        over = f"{text}\nNo guesses are left. The word was {self.secret.upper()}."
        return self.finish(reward, over, solved=0.0, greens=greens, yellows=yellows)


def _is_word(word: str) -> bool:
    """Whether a word has letters from a to z only."""
    return word.isascii() and word.isalpha()


Pool = Literal["train", "test", "all"]

LENGTHS = range(4, 9)
"""The lengths that have word lists; the lists of other lengths are empty."""


@lru_cache(maxsize=16)
def word_index(length: int, words: tuple[str, ...] | None = None) -> WordIndex:
    """The index for secrets of a length, or among given words."""
    return WordIndex(answers(length) if words is None else words, probes=answers(length))


@cache
def answers(length: int) -> tuple[str, ...]:
    """The common words of a length, sorted, from which secrets are drawn."""
    return _read_word_list("answers", length)


@cache
def secrets(length: int, pool: Pool) -> tuple[str, ...]:
    """The words of a pool: `test` has the words of that split, and `train` all others.

    A word keeps its pool when others are added or removed.
    """
    if pool == "all":
        return answers(length)
    test = pool == "test"
    return tuple(word for word in answers(length) if (split_of(key_digest(word)) == "test") == test)


@cache
def guesses(length: int) -> frozenset[str]:
    """The words of a length that are accepted as a guess, including all answers."""
    return frozenset(_read_word_list("guesses", length))


def _read_word_list(name: str, length: int) -> tuple[str, ...]:
    if length not in LENGTHS:
        return ()
    file = files(__package__).joinpath("words", f"{name}-{length}.txt")
    return tuple(file.read_text(encoding="ascii").split())
