"""A typed client for a browsergym server; it needs neither the library nor a browser."""

from __future__ import annotations

from ludus.client.env_client import EnvClient
from ludus.envs.browsergym.models import BrowserGymAction, BrowserGymObservation
from ludus.protocol.types import State


class BrowserGymEnv(EnvClient[BrowserGymAction, BrowserGymObservation, State]):
    """A typed client for a browsergym server."""
