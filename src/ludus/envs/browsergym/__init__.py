"""MiniWoB++ on a real browser, through BrowserGym (extra `browsergym`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ludus.envs.lazy_names import lazy_names

if TYPE_CHECKING:
    from ludus.envs.browsergym.client import (
        BrowserGymAction,
        BrowserGymEnv,
        BrowserGymObservation,
    )
    from ludus.envs.browsergym.environment import BrowserGym

__all__ = ["BrowserGym", "BrowserGymAction", "BrowserGymEnv", "BrowserGymObservation"]

__getattr__ = lazy_names(
    __name__,
    {
        "BrowserGym": "environment",
        "BrowserGymAction": "client",
        "BrowserGymEnv": "client",
        "BrowserGymObservation": "client",
    },
    extra="browsergym",
    libraries=("browsergym", "miniwob", "playwright", "psutil"),
)
