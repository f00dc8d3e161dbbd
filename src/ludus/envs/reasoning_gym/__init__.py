"""The reasoning_gym library as an environment (extra `reasoning`).

The names are loaded on first use, so that the worker processes start without the rest of Ludus.
"""

from __future__ import annotations

import importlib
import importlib.util
from typing import TYPE_CHECKING, Any

from ludus.errors import MissingExtra

if TYPE_CHECKING:
    from ludus.envs.reasoning_gym.client import ReasoningGymEnv
    from ludus.envs.reasoning_gym.environment import ReasoningGym
    from ludus.envs.reasoning_gym.models import ReasoningGymAction, ReasoningGymObservation

__all__ = ["ReasoningGym", "ReasoningGymAction", "ReasoningGymEnv", "ReasoningGymObservation"]

_HOMES = {"ReasoningGym": "environment", "ReasoningGymEnv": "client"}
"""The modules of the names; the others are in `models`."""


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name == "ReasoningGym" and importlib.util.find_spec("reasoning_gym") is None:
        # Only the environment needs the library; a client of a server elsewhere does not.
        raise MissingExtra.of("reasoning", "The reasoning_gym environment")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES.get(name, 'models')}"), name)
