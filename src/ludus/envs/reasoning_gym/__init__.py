"""The reasoning_gym library as an environment (extra `reasoning`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ludus.envs.lazy_names import lazy_names

if TYPE_CHECKING:
    from ludus.envs.reasoning_gym.client import (
        ReasoningGymAction,
        ReasoningGymEnv,
        ReasoningGymObservation,
    )
    from ludus.envs.reasoning_gym.environment import ReasoningGym

__all__ = ["ReasoningGym", "ReasoningGymAction", "ReasoningGymEnv", "ReasoningGymObservation"]

__getattr__ = lazy_names(
    __name__,
    {
        "ReasoningGym": "environment",
        "ReasoningGymAction": "client",
        "ReasoningGymEnv": "client",
        "ReasoningGymObservation": "client",
    },
    extra="reasoning",
    libraries=("reasoning_gym",),
)
