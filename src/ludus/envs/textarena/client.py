"""A typed client for a textarena server; it does not need the library."""

from __future__ import annotations

from ludus.client.env_client import EnvClient
from ludus.envs.textarena.models import TextArenaAction, TextArenaObservation
from ludus.protocol.types import State


class TextArenaEnv(EnvClient[TextArenaAction, TextArenaObservation, State]):
    """A typed client for a textarena server."""
