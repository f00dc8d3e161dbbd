"""Action and observation of the guess_number environment, for clients."""

from __future__ import annotations

from pydantic import Field

from ludus.protocol.types import Action, TextObservation


class GuessNumberAction(Action):
    """Guess the secret number."""

    number: int = Field(description="The whole number that you guess.")


class GuessNumberObservation(TextObservation):
    """The rules, or the answer to the last guess, in `text`."""
