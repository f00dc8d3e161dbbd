"""Action and observation of the python environment, for clients."""

from __future__ import annotations

from pydantic import Field

from ludus.protocol.types import Action, TextObservation


class PythonAction(Action):
    """Submit the final code, which is tested. This ends the episode."""

    code: str = Field(description="Python code that defines the function, and what it needs.")


class PythonObservation(TextObservation):
    """The task, the output of a program, or the result of the tests, in `text`."""
