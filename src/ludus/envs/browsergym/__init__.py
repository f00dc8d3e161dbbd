"""MiniWoB++ on a real browser, through BrowserGym (extra `browsergym`).

The names are loaded on first use, so that the worker processes start without the rest of Ludus.
"""

from __future__ import annotations

import importlib
import importlib.util
from typing import TYPE_CHECKING, Any

from ludus.errors import MissingExtra

if TYPE_CHECKING:
    from ludus.envs.browsergym.client import BrowserGymEnv
    from ludus.envs.browsergym.environment import BrowserGym
    from ludus.envs.browsergym.models import BrowserGymAction, BrowserGymObservation

__all__ = ["BrowserGym", "BrowserGymAction", "BrowserGymEnv", "BrowserGymObservation"]

_HOMES = {"BrowserGym": "environment", "BrowserGymEnv": "client"}
"""The modules of the names; the others are in `models`."""
_LIBRARIES = ("browsergym", "miniwob", "playwright", "psutil")


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name == "BrowserGym" and not all(map(importlib.util.find_spec, _LIBRARIES)):
        # Only the environment needs the libraries; a client of a server elsewhere does not.
        raise MissingExtra.of("browsergym", "The browsergym environment")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES.get(name, 'models')}"), name)
