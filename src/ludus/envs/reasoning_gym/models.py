"""What a client of a reasoning_gym server sends and gets."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from ludus.protocol.types import Action, Observation


class ReasoningGymAction(Action):
    """Submit the final answer to the question."""

    answer: str = Field(
        description="The final answer, in the form that the question asks for, and nothing else."
    )


class ReasoningGymObservation(Observation):
    """A question after a reset; after a step, what the answer was worth."""

    question: str | None = None
    score: float | None = None
    correct_answer: str | None = None
    """The data set's own answer; None where there are many and it names none."""
    dataset_metadata: dict[str, Any] | None = None
    """How the question was made. It may hold the answer, so no model is shown it."""
