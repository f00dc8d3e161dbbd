"""The single-player games of the TextArena library as an environment (extra `textarena`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ludus.envs.lazy_names import lazy_names

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

__getattr__ = lazy_names(
    __name__,
    {
        "TextArena": "environment",
        "TextArenaAction": "models",
        "TextArenaEnv": "client",
        "TextArenaMessage": "models",
        "TextArenaObservation": "models",
    },
    extra="textarena",
    libraries=("textarena",),
)
