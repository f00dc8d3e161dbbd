"""The single-player games of the TextArena library as an environment (extra `textarena`)."""

from __future__ import annotations

import importlib
import importlib.util
from typing import TYPE_CHECKING, Any

from ludus.errors import MissingExtra

if TYPE_CHECKING:
    from ludus.envs.textarena.client import TextArenaEnv
    from ludus.envs.textarena.environment import TextArena
    from ludus.envs.textarena.models import (
        TextArenaAction,
        TextArenaMessage,
        TextArenaObservation,
    )

__all__ = [
    "TextArena",
    "TextArenaAction",
    "TextArenaEnv",
    "TextArenaMessage",
    "TextArenaObservation",
]

_HOMES = {"TextArena": "environment", "TextArenaEnv": "client"}
"""The modules of the names; the others are in `models`."""


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name == "TextArena" and importlib.util.find_spec("textarena") is None:
        # Only the environment needs the library; a client of a server elsewhere does not.
        raise MissingExtra.of("textarena", "The textarena environment")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES.get(name, 'models')}"), name)
