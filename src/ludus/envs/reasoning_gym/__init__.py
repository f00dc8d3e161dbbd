"""The reasoning_gym library as an environment (extra `reasoning`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer

from ludus.client.env_client import EnvClient
from ludus.data.tool_schema import JsonObject
from ludus.envs import lazy_environment
from ludus.protocol.types import Action, Observation, State

if TYPE_CHECKING:
    from ludus.envs.reasoning_gym.environment import ReasoningGym

__all__ = ["ReasoningGym", "ReasoningGymAction", "ReasoningGymEnv", "ReasoningGymObservation"]

__getattr__ = lazy_environment(
    __name__, "ReasoningGym", extra="reasoning", libraries=("reasoning_gym",)
)


class ReasoningGymAction(Action):
    """Submit the final answer to the question. There is one try."""

    answer: str = Field(
        description="The final answer, in the form that the question asks for, and nothing else."
    )


class ReasoningGymObservation(Observation):
    """A question after a reset; after a step, what the answer was worth."""

    question: str | None = None
    score: float | None = None
    correct_answer: str | None = None
    """The data set's own answer; None if there are many and it names none."""
    dataset_metadata: JsonObject | None = None
    """How the question was made. It may hold the answer, so no model is shown it."""
    note: str | None = None
    """Why an answer was not evaluated; left out on the wire if there is nothing to say."""

    @model_serializer(mode="wrap")
    def _leave_out_note(self, dump: SerializerFunctionWrapHandler) -> JsonObject:
        fields: JsonObject = dump(self)
        if self.note is None:
            fields.pop("note", None)
        return fields


class ReasoningGymEnv(EnvClient[ReasoningGymAction, ReasoningGymObservation, State]):
    """A typed client for a reasoning_gym server."""
