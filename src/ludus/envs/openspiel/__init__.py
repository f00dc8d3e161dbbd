"""The games of the OpenSpiel library as an environment (extra `openspiel`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ludus.envs.lazy_names import lazy_names

if TYPE_CHECKING:
    from ludus.envs.openspiel.client import OpenSpielEnv
    from ludus.envs.openspiel.environment import OpenSpiel
    from ludus.envs.openspiel.models import OpenSpielAction, OpenSpielObservation

__all__ = ["OpenSpiel", "OpenSpielAction", "OpenSpielEnv", "OpenSpielObservation"]

__getattr__ = lazy_names(
    __name__,
    {
        "OpenSpiel": "environment",
        "OpenSpielAction": "models",
        "OpenSpielEnv": "client",
        "OpenSpielObservation": "models",
    },
    extra="openspiel",
    libraries=("pyspiel",),
)
