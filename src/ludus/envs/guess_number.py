"""Guess a number: each guess is answered with higher or lower."""

from __future__ import annotations

import math
import random

from pydantic import Field

from ludus.client.env_client import EnvClient
from ludus.data.tool_schema import ToolCall
from ludus.environment.tool_environment import ToolEnvironment
from ludus.environment.tools import tool
from ludus.errors import ToolError
from ludus.protocol.types import Action, State, TextObservation


class GuessNumberAction(Action):
    """Guess the secret number."""

    number: int = Field(description="The whole number that you guess.")


class GuessNumberObservation(TextObservation):
    """The rules, or the answer to the last guess, in `text`."""


class GuessNumberEnv(EnvClient[GuessNumberAction, GuessNumberObservation, State]):
    """A typed client for a guess_number server."""


MISSED_CREDIT = 0.4
"""Maximum reward of an episode that does not find the number."""

_RULES = """\
Find the secret number. It is a whole number from {low} to {high}.
Each guess is answered with whether the secret number is higher or lower than your guess.
A guess outside of {low} to {high} is refused, and still counts.
Finding the number scores 1. Otherwise you score up to {credit}, the more you narrowed it down.
Guesses left: {turns}"""


class GuessNumber(ToolEnvironment):
    """Find a secret number from whether it is higher or lower than each guess.

    Tools:
        guess(number): guesses a number.
    Observation:
        The rules; then whether the number is higher or lower, the range that is left, and how many
        guesses are left.
    Reward:
        1.0 for the number. Without it, at the end, 0.4 times the fraction of the information that
        the guesses have brought: 1 - log(numbers left) / log(numbers at the start).
        Its parts: `solved`, and `narrowed`, that fraction (1.0 for the number).
    Episode end:
        The number is found, or `max_turns` guesses are made; then the number is told.
    Task arguments:
        seed: picks the number.
        low, high: the range of the number (1 to 100).
        max_turns: how many guesses there are (as many as halving the range needs: 7 for 1 to 100).
            A guess outside of the range is refused with an error, and counts.
    """

    def reset(
        self,
        *,
        seed: int | None = None,
        low: int = 1,
        high: int = 100,
        max_turns: int | None = None,
    ) -> str:
        if low >= high:
            raise ValueError(f"low must be less than high, got {low} and {high}.")
        if max_turns is not None and max_turns < 1:
            raise ValueError(f"max_turns must be positive, got {max_turns}.")
        self.low, self.high = low, high
        self.secret = random.Random(seed).randint(low, high)
        self.lowest, self.highest = low, high  # The range that the answers have left.
        self.found = False
        self.max_turns = self.turns_left = max_turns or (high - low + 1).bit_length()
        return _RULES.format(low=low, high=high, credit=MISSED_CREDIT, turns=self.turns_left)

    @tool
    def guess(self, number: int) -> str:
        """Guess the secret number.

        Args:
            number: The whole number that you guess.
        """
        self.turns_left -= 1
        if not self.low <= number <= self.high:
            refusal = f"{number} is refused: the secret number is from {self.low} to {self.high}."
            raise ToolError(self._reply(refusal))
        if number == self.secret:
            self.found = True
            return self.finish(
                1.0, f"{number} is right. You found the number.", solved=1.0, narrowed=1.0
            )
        if number < self.secret:
            self.lowest = max(self.lowest, number + 1)
            return self._reply(f"The secret number is higher than {number}.")
        self.highest = min(self.highest, number - 1)
        return self._reply(f"The secret number is lower than {number}.")

    def oracle(self, *, rng: random.Random | None = None, working: bool = False) -> ToolCall:
        """Halve the range; only the last guess uses the secret number.

        With `rng`, about halve it, so that the guesses left still suffice. With `working`, halve it
        exactly, and write how the middle is found.
        """
        low, high = self.lowest, self.highest
        number = middle = (low + high) // 2
        if self.turns_left == 1:
            number = self.secret
        elif rng is not None and not working:
            # The upper part, which is never the smaller one, may have so many numbers at most.
            affordable = 2 ** (self.turns_left - 1) - 1
            slack = max(min((high - low) // 16, affordable - (high - middle)), 0)
            number = rng.randint(middle - slack, middle + slack)
        text = ""
        if working and number == middle:
            text = f"From {low} to {high}: {low} + {high} = {low + high}, half of it is {number}."
        elif working:
            text = f"From {low} to {high}, and this is the last guess: {number}."
        return ToolCall(name="guess", arguments={"number": number}, text=text)

    def random_action(self, rng: random.Random) -> ToolCall:
        """A number from the range that is left."""
        number = rng.randint(self.lowest, self.highest)
        return ToolCall(name="guess", arguments={"number": number})

    def task_key(self) -> str:
        return f"guess {self.secret} from {self.low} to {self.high}"

    def progress(self) -> float:
        """The fraction of the information that the guesses have brought; 1 for the number."""
        left = 0 if self.found else self.highest - self.lowest + 1
        return 1.0 - math.log1p(left) / math.log1p(self.high - self.low + 1)

    def _reply(self, answer: str) -> str:
        if self.turns_left > 0:
            span = f"It is from {self.lowest} to {self.highest}."
            return f"{answer} {span}\nGuesses left: {self.turns_left}"
        left, start = self.highest - self.lowest + 1, self.high - self.low + 1
        narrowed = 1.0 - math.log(left) / math.log(start)
        text = f"{answer}\nNo guesses are left. The number was {self.secret}."
        return self.finish(MISSED_CREDIT * narrowed, text, solved=0.0, narrowed=narrowed)
