"""Action and observation of the countdown environment, for clients."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from ludus.protocol.types import Action, TextObservation

Operation = Literal["+", "-", "*", "/"]


class CountdownAction(Action):
    """Combine two of the numbers at hand; the result replaces both."""

    first: int = Field(description="The left number, which must be at hand.")
    operation: Operation = Field(description="What to do with the two numbers.")
    second: int = Field(description="The right number, which must be at hand.")


class CountdownObservation(TextObservation):
    """The target and the numbers at hand, in `text`."""
