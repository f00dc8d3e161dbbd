"""A typed client for a reasoning_gym server; it does not need the library."""

from __future__ import annotations

from ludus.client.env_client import EnvClient
from ludus.envs.reasoning_gym.models import ReasoningGymAction, ReasoningGymObservation
from ludus.protocol.types import State


class ReasoningGymEnv(EnvClient[ReasoningGymAction, ReasoningGymObservation, State]):
    """A typed client for a reasoning_gym server."""
