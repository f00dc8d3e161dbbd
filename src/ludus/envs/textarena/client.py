"""A typed client for a textarena server; it does not need the library."""

from __future__ import annotations

from ludus.client.env_client import EnvClient
from ludus.envs.textarena.models import TextArenaAction, TextArenaObservation
from ludus.protocol.types import State


class TextArenaEnv(EnvClient[TextArenaAction, TextArenaObservation, State]):
    """A typed client for a textarena server.

    with TextArenaEnv(base_url="http://localhost:8000").sync() as client:
        print(client.reset(seed=7, game_name="GuessTheNumber-v0").observation.prompt)
        result = client.step(TextArenaAction(message="[10]"))
    """
