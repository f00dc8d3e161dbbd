"""The reasoning_gym library as an environment (extra `reasoning`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ludus.envs.lazy_names import lazy_names

if TYPE_CHECKING:
    from ludus.envs.reasoning_gym.client import ReasoningGymEnv
    from ludus.envs.reasoning_gym.environment import ReasoningGym
    from ludus.envs.reasoning_gym.models import ReasoningGymAction, ReasoningGymObservation

__all__ = ["ReasoningGym", "ReasoningGymAction", "ReasoningGymEnv", "ReasoningGymObservation"]

__getattr__ = lazy_names(
    __name__,
    {
        "ReasoningGym": "environment",
        "ReasoningGymAction": "models",
        "ReasoningGymEnv": "client",
        "ReasoningGymObservation": "models",
    },
    extra="reasoning",
    libraries=("reasoning_gym",),
)
