"""Action and observation of the wordle environment, for clients."""

from __future__ import annotations

from pydantic import Field

from ludus.protocol.types import Action, TextObservation


class WordleAction(Action):
    """Guess the secret word."""

    word: str = Field(description="The word that you guess, for example: crane.")


class WordleObservation(TextObservation):
    """The rules, or the marks of the last guess, in `text`."""
