"""The games of the OpenSpiel library as an environment (extra `openspiel`)."""

from __future__ import annotations

import importlib
import importlib.util
from typing import TYPE_CHECKING, Any

from ludus.errors import MissingExtra

if TYPE_CHECKING:
    from ludus.envs.openspiel.client import OpenSpielEnv
    from ludus.envs.openspiel.environment import OpenSpiel
    from ludus.envs.openspiel.models import OpenSpielAction, OpenSpielObservation

__all__ = ["OpenSpiel", "OpenSpielAction", "OpenSpielEnv", "OpenSpielObservation"]

_HOMES = {"OpenSpiel": "environment", "OpenSpielEnv": "client"}
"""The modules of the names; the others are in `models`."""


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name == "OpenSpiel" and importlib.util.find_spec("pyspiel") is None:
        # Only the environment needs the library; a client of a server elsewhere does not.
        raise MissingExtra.of("openspiel", "The openspiel environment")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES.get(name, 'models')}"), name)
